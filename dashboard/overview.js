// An account at a glance: its slots and queues, and its workflows.

import { h, loading, render } from "./dom.js";
import { count, duration, moment, rate } from "./format.js";
import { call, result } from "./http.js";
import { Poll } from "./poll.js";
import { link, withQuery } from "./route.js";

const OVERVIEW_MS = 2_000;
const COUNTS_MS = 5_000;
const PER_PAGE = 50;
const RATE_WINDOW_MS = 20_000;
const COLUMNS = ["Workflow", "Queued", "Oldest", "Running", "Lease", "Waiting", "Paused", "Complete", "Errored", "Terminated", "Newest"];

export function showOverview(place, context, { account }) {
  const tiles = h("div", { class: "tiles" });
  const table = h("div", {});
  let overview = null;
  let page = null;
  let number = 1;
  let search = "";
  const samples = [];
  render(
    place,
    h("h1", {}, "Workflows of ", h("b", {}, account)),
    tiles,
    h("div", { class: "filters" },
      h("div", { class: "field" },
        h("label", { for: "search" }, "Name holds"),
        h("input", { id: "search", type: "search", autocomplete: "off", on: { input: (event) => find(event.target.value) } }))),
    table,
  );
  render(tiles, loading());
  const words = { account_id: account };
  const polls = [
    new Poll(
      async (signal) => {
        overview = await result("getOverview", words, { signal });
        note(samples, overview);
        render(tiles, tilesOf(overview, rateOf(samples)));
        if (page) showTable();
      },
      OVERVIEW_MS,
      context.failed,
    ),
    new Poll(
      async (signal) => {
        const asked = search;
        const found = await call("listWorkflows", words, { query: { page: number, per_page: PER_PAGE, search }, signal });
        if (asked !== search) return;
        page = found;
        showTable();
      },
      COUNTS_MS,
      context.failed,
    ),
  ];
  return () => polls.forEach((poll) => poll.stop());

  function find(text) {
    search = text;
    number = 1;
    polls[1].now();
  }

  function turn(by) {
    number += by;
    polls[1].now();
  }

  function showTable() {
    render(table, workflowsOf(account, page, overview), pagerOf(page.result_info, number, turn));
  }
}

// Of how many instances an account knows that they were made: for a rate, taken twice.
function note(samples, overview) {
  const made = overview.workflows.reduce((sum, one) => {
    const ended = Object.values(one.ended).reduce((all, each) => all + each, 0);
    return sum + one.queued + one.running + one.waiting + one.paused + ended;
  }, 0);
  samples.push({ at: Date.parse(overview.time), made });
  while (samples.length > 2 && samples[1].at < samples.at(-1).at - RATE_WINDOW_MS) samples.shift();
}

function rateOf(samples) {
  const [first, last] = [samples[0], samples.at(-1)];
  if (!first || last.at - first.at < OVERVIEW_MS / 2) return null;
  return Math.max(0, (last.made - first.made) / ((last.at - first.at) / 1000));
}

function tilesOf(overview, perSecond) {
  const sum = (name) => overview.workflows.reduce((all, one) => all + one[name], 0);
  const queued = sum("queued");
  const oldest = Math.max(0, ...overview.workflows.map((one) => one.queue_age_ms));
  const limit = overview.running_max;
  const part = limit ? Math.min(1, overview.used / limit) : 0;
  return [
    tile("Running", count(overview.used), `of ${count(limit)} slots; ${count(overview.leased)} leased`, part),
    tile("Queued", count(queued), queued ? `the oldest for ${duration(oldest)}` : "nobody waits for a slot"),
    tile("Waiting", count(sum("waiting")), "for time or an event; no slot held"),
    tile("Paused", count(sum("paused")), "until somebody resumes them"),
    tile("Created a second", perSecond === null ? "..." : rate(perSecond), "over the last 20 seconds"),
    tile("Control plane", (overview.control_plane ?? "unknown").toUpperCase(), overview.complete ? `${count(overview.wanted)} slots wanted` : "not every shard has told all: figures are too low"),
  ];
}

function tile(title, figure, told, part) {
  const bar = part === undefined ? null : h("div", { class: part > 0.95 ? "bar full" : "bar", vars: { "--part": part }, "aria-hidden": "true" });
  return h("section", { class: "tile", key: title }, h("h2", {}, title), h("p", { class: "figure" }, figure), bar, h("p", { class: "quiet" }, told));
}

function workflowsOf(account, page, overview) {
  const figures = new Map((overview?.workflows ?? []).map((one) => [one.name, one]));
  const rows = page.result.map((flow) => rowOf(account, flow, figures.get(flow.name)));
  const others = (overview?.workflows ?? []).filter((one) => one.name.startsWith("(") && one.souschefs);
  if (!rows.length) {
    return h("p", { class: "empty" }, "No workflow is here. Deploy one: toque deploy FILE");
  }
  const head = COLUMNS.map((name) => h("th", { scope: "col", role: "columnheader" }, name));
  return [
    h(
      "table",
      { role: "table", class: "figures" },
      h("caption", { class: "hidden" }, "Workflows"),
      h("thead", {}, h("tr", { role: "row" }, head)),
      h("tbody", {}, rows),
    ),
    others.map((one) => h("p", { class: "quiet" }, `${one.name}: ${count(one.queued)} queued, ${count(one.running)} running, ${count(one.lease)} leased.`)),
  ];
}

function rowOf(account, flow, now) {
  const href = link("a", account, "w", flow.name);
  const cell = (name, ...children) => h("td", { role: "cell", "data-label": name }, children);
  const counted = (name, status) => {
    const number = flow.instances[status] ?? 0;
    const told = number ? h("a", { href: withQuery(href, { status }), class: status === "errored" ? "bad" : null }, count(number)) : h("span", { class: "quiet" }, "0");
    return cell(name, told);
  };
  return h(
    "tr",
    { role: "row", key: flow.id },
    h("th", { scope: "row", role: "rowheader", "data-label": "Workflow" }, h("a", { href }, flow.name)),
    counted("Queued", "queued"),
    cell("Oldest", now?.queued ? duration(now.queue_age_ms) : h("span", { class: "quiet" }, "-")),
    counted("Running", "running"),
    cell("Lease", now ? count(now.lease) : h("span", { class: "quiet" }, "-")),
    counted("Waiting", "waiting"),
    counted("Paused", "paused"),
    counted("Complete", "complete"),
    counted("Errored", "errored"),
    counted("Terminated", "terminated"),
    cell("Newest", moment(flow.triggered_on)),
  );
}

// Buttons to other pages of a list that is paged by number.
export function pagerOf(info, number, turn) {
  if (info.total_pages <= 1) return null;
  const button = (text, by, isOff) => h("button", { type: "button", disabled: isOff, on: { click: () => turn(by) } }, text);
  return h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    button("Previous", -1, number <= 1),
    h("span", {}, `Page ${number} of ${info.total_pages}`),
    button("Next", 1, number >= info.total_pages),
  );
}
