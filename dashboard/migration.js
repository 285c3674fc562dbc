// The move of an account from V1 to V2, for operators.

import { confirm } from "./dialog.js";
import { h, loading, render, say } from "./dom.js";
import { count, moment } from "./format.js";
import { result } from "./http.js";
import { Poll } from "./poll.js";
import { link } from "./route.js";

const PERIOD_MS = 3_000;
const CHANGES = [
  ["pauseMigration", "Pause", "It holds where it may, until it is resumed."],
  ["resumeMigration", "Resume", "It goes on."],
  ["abortMigration", "Abort", "It is taken back; the account stays on V1."],
];

export function showMigration(place, context, { account }) {
  const words = { account_id: account };
  const box = h("div", {});
  render(
    place,
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: link("a", account) }, account), " / migration"),
    h("h1", {}, "Migration of ", h("b", {}, account)),
    box,
  );
  render(box, loading());
  const poll = new Poll(
    async (signal) => render(box, show(await result("getMigration", words, { signal }))),
    PERIOD_MS,
    context.failed,
  );
  return () => poll.stop();

  function show(told) {
    if (told.migration_id === null) {
      return h("p", {}, `No move was begun; the account is on ${(told.plane ?? "an unknown plane").toUpperCase()}. `, h("span", { class: "quiet" }, "Begin one with toque migrate start."));
    }
    const isOver = ["retired", "aborted"].includes(told.state);
    return [
      h("section", { class: "panel" },
        h("p", {}, "State ", h("b", {}, told.state), told.paused ? (told.holds ? "; it holds, since it is paused" : "; it is to be paused") : null, told.starts_on ? ["; begins ", moment(told.starts_on)] : null),
        told.trouble ? h("p", { class: "bad" }, told.trouble) : null,
        told.final ? h("p", { class: "quiet" }, told.final) : null,
        context.may("admin") && !isOver && h("div", { class: "buttons" },
          CHANGES.map(([change, label, text]) => h("button", { type: "button", disabled: isOff(change, told), on: { click: () => act(change, label, text) } }, label)))),
      h("h2", {}, "So far"),
      h("ol", {}, told.states.map((one) => h("li", {}, one.state, " ", moment(one.since)))),
      instancesOf("Instances of V1 now", told.instances),
      instancesOf("When it was frozen", told.at_freeze),
    ];
  }

  function act(change, label, text) {
    confirm({
      title: `${label} the migration of ${account}?`,
      text,
      label,
      isDanger: change === "abortMigration",
      act: async (_values, key) => {
        const told = await result(change, words, { key });
        say(`${label}: its state is ${told.state}.`);
        poll.now();
      },
    });
  }
}

function isOff(change, told) {
  if (change === "abortMigration") return !told.abortable;
  return (change === "pauseMigration") === told.paused;
}

function instancesOf(title, told) {
  if (!told) return null;
  return h("section", { key: title }, h("h2", {}, title), h("dl", { class: "facts" }, Object.entries(told).filter(([, number]) => number !== null).map(([name, number]) => h("div", {}, h("dt", {}, name), h("dd", {}, count(number))))));
}
