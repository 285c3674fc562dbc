// The server itself, for operators: what its doctor finds, and its shards.

import { h, loading, render } from "./dom.js";
import { bytes, count, duration } from "./format.js";
import { result } from "./http.js";
import { Poll } from "./poll.js";

const PERIOD_MS = 5_000;
const SHOWN = [
  ["live_entities", "In memory", count],
  ["calls", "Calls", count],
  ["outbox_waiting", "Messages that wait", count],
  ["alarms_fired", "Alarms fired", count],
  ["alarm_late_ms_max", "Latest alarm", duration],
  ["store_wal_bytes", "Log on disk", bytes],
  ["hibernated", "Left memory", count],
  ["resets", "Resets", count],
  ["threads_hung", "Hung threads", count],
  ["workers", "Workers", count],
];

export function showServer(place, context) {
  const health = h("section", { class: "panel" });
  const shards = h("div", {});
  render(place, h("h1", {}, "Server"), health, h("h2", {}, "Shards"), shards);
  render(health, loading());
  const poll = new Poll(
    async (signal) => {
      const [found, told] = await Promise.all([result("doctor", {}, { signal }), result("shards", {}, { signal })]);
      render(health, h("h2", {}, "Doctor"), healthOf(found));
      render(shards, tableOf(told));
    },
    PERIOD_MS,
    context.failed,
  );
  return () => poll.stop();
}

function healthOf(found) {
  if (!found.length) return h("p", { class: "good" }, "\u2713 Nothing is wrong, by what its parts tell.");
  return h("ul", { class: "faults" }, found.map((one) =>
    h("li", {}, h("b", { class: one.note ? "" : "bad" }, one.code), " ", h("code", {}, one.place), `: ${one.meaning}. ${one.detail}`)));
}

function tableOf(told) {
  const head = ["Shard", ...SHOWN.map(([, title]) => title)].map((name) => h("th", { scope: "col", role: "columnheader" }, name));
  const rows = Object.entries(told).sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true })).map(([name, figures]) =>
    h("tr", { role: "row", key: name },
      h("th", { scope: "row", role: "rowheader", "data-label": "Shard" }, name),
      SHOWN.map(([key, title, show]) => h("td", { role: "cell", "data-label": title }, key in figures ? show(figures[key]) : "-"))));
  return h("table", { role: "table", class: "figures" }, h("caption", { class: "hidden" }, "Shards"), h("thead", {}, h("tr", { role: "row" }, head)), h("tbody", {}, rows));
}
