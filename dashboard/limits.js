// Limits of an account or a workflow: shown, and changed by who may.

import { confirm, field } from "./dialog.js";
import { h, loading, render, say } from "./dom.js";
import { duration } from "./format.js";
import { result } from "./http.js";
import { link } from "./route.js";

const RETENTION = 'Milliseconds, or text such as "3 days"; empty: the default.';
const FIELDS = {
  running_max: ["Running instances at most", "Empty: the default. 0 of an account: none runs; 0 of a workflow: only the account's limit."],
  creates_per_second: ["Creates a second", "Empty: the default."],
  success_retention: ["Kept after success", RETENTION],
  error_retention: ["Kept after another end", RETENTION],
  weight: ["Weight, when slots are short", "Empty: the default."],
  souschefs: ["Queues (SousChefs)", 'A number, or "auto": it follows the load.'],
  steps: ["Steps of an instance at most", "Empty: as its code or the server says."],
  queued_max: ["Queued instances at most", "Empty: the default."],
};

export function showLimits(place, context, { account, workflow }) {
  const words = { account_id: account, workflow_name: workflow };
  const [get, change] = workflow ? ["getWorkflowLimits", "changeWorkflowLimits"] : ["getLimits", "changeLimits"];
  const mayChange = context.may("admin");
  const ended = new AbortController();
  const box = h("div", {});
  render(
    place,
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: link("a", account) }, account),
      workflow && [" / ", h("a", { href: link("a", account, "w", workflow) }, workflow)], " / limits"),
    h("h1", {}, "Limits of ", h("b", {}, workflow ?? account)),
    mayChange ? null : h("p", { class: "quiet" }, "This token may not change them: that needs the scope admin."),
    box,
  );
  render(box, loading());
  result(get, words, { signal: ended.signal }).then(show, (error) => ended.signal.aborted || context.failed(error));
  return () => ended.abort();

  function show(found) {
    const told = h("div", {});
    const names = Object.keys(FIELDS).filter((name) => name in found);
    const shown = Object.fromEntries(names.map((name) => [name, textOf(name, found)]));
    const inputs = names.map((name) => {
      const [label, help] = FIELDS[name];
      const input = h("input", { name, value: shown[name], autocomplete: "off", disabled: !mayChange });
      const long = name.endsWith("retention") && found[name] !== null ? ` Now ${duration(found[name])}.` : "";
      return field(label, input, help + long);
    });
    const button = h("button", { type: "submit", class: "main" }, "Change");
    box.replaceChildren(h("form", { class: "limits", on: { submit } }, inputs, told, mayChange && button));

    function submit(event) {
      event.preventDefault();
      render(told);
      const json = {};
      for (const [name, text] of new FormData(event.target)) {
        if (text.trim() !== shown[name]) json[name] = valueOf(text.trim());
      }
      if (!Object.keys(json).length) {
        render(told, h("p", { class: "quiet" }, "Nothing was changed."));
        return;
      }
      const lines = Object.entries(json).map(([name, value]) => `${FIELDS[name][0]}: ${shown[name] || "the default"}, from now on ${value ?? "the default"}.`);
      confirm({
        title: `Change the limits of ${workflow ?? account}?`,
        text: lines,
        label: "Change",
        act: async () => {
          const now = await result(change, words, { json });
          say(`Changed: ${Object.keys(json).join(", ")}. It takes effect within two seconds.`);
          show(now);
        },
      });
    }
  }
}

function textOf(name, found) {
  if (name === "souschefs" && found.souschefs_auto) return "auto";
  return found[name] === null ? "" : String(found[name]);
}

const valueOf = (text) => (text === "" ? null : /^\d+$/.test(text) ? Number(text) : text);
