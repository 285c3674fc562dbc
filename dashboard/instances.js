// The instances of a workflow: filtered, by cursor, and kept fresh.

import { changeMany } from "./bulk.js";
import { h, loading, problem, render } from "./dom.js";
import { count, duration, moment, status } from "./format.js";
import { call } from "./http.js";
import { Poll } from "./poll.js";
import { link, queryOf, withQuery } from "./route.js";

export const STATUSES = ["queued", "running", "waiting", "paused", "waitingForPause", "rollingBack", "complete", "errored", "terminated"];
const PERIOD_MS = 3_000;
const PER_PAGE = 50;
const TRAIL_MAX = 10_000;
const COLUMNS = ["Instance", "Status", "Created", "Started", "Took", "Made by"];

export function showInstances(place, context, { account, workflow }) {
  const here = link("a", account, "w", workflow);
  const words = { account_id: account, workflow_name: workflow };
  const asked = queryOf(location.hash);
  const wanted = new Set((asked.get("status") ?? "").split(",").filter((word) => STATUSES.includes(word)));
  let prefix = asked.get("prefix") ?? "";
  let trail = [""]; // the cursors that led here; the last is this page's
  let later = null;
  const list = h("div", {});
  render(
    place,
    h("nav", { class: "crumbs", "aria-label": "Where this is" }, h("a", { href: link("a", account) }, account), " / ", h("b", {}, workflow)),
    h(
      "div",
      { class: "titled" },
      h("h1", {}, "Instances of ", h("b", {}, workflow)),
      h(
        "div",
        { class: "buttons" },
        h("a", { class: "button", href: link("a", account, "limits", workflow) }, "Limits"),
        context.may("write") && h("button", { type: "button", on: { click: change } }, "Change all that match"),
      ),
    ),
    h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } }, chips(), prefixField()),
    list,
  );
  render(list, loading());
  const poll = new Poll(look, PERIOD_MS, context.failed);
  return () => poll.stop();

  function chips() {
    const chip = (word) =>
      h("label", { class: "chip" },
        h("input", { type: "checkbox", name: "status", value: word, checked: wanted.has(word), on: { change: (event) => pick(word, event.target.checked) } }),
        status(word));
    return h("fieldset", {}, h("legend", {}, "Status"), STATUSES.map(chip));
  }

  function prefixField() {
    const input = h("input", { id: "prefix", type: "search", value: prefix, spellcheck: "false", autocomplete: "off", placeholder: "folder/7/", on: { input: (event) => narrow(event.target.value) } });
    return h("div", { class: "field" }, h("label", { for: "prefix" }, "Id begins with"), input);
  }

  function pick(word, isWanted) {
    if (isWanted) wanted.add(word);
    else wanted.delete(word);
    again();
  }

  function narrow(text) {
    prefix = text.trim();
    again();
  }

  function again() {
    trail = [""];
    history.replaceState(null, "", withQuery(here, { status: [...wanted].join(","), prefix }));
    poll.now();
  }

  function turn(cursor) {
    if (cursor === null) trail.pop();
    else trail = [...trail.slice(-TRAIL_MAX), cursor];
    poll.now();
  }

  async function look(signal) {
    const query = { per_page: PER_PAGE, status: [...wanted].join(","), prefix, direction: prefix ? "asc" : "", cursor: trail.at(-1) };
    let found;
    try {
      found = await call("listInstances", words, { query, signal });
    } catch (error) {
      if (error.status !== 400) throw error; // such as a prefix that no id can have
      render(list, problem(error));
      return;
    }
    later = found.result_info.cursor ?? null;
    const info = found.result_info;
    render(
      list,
      h("p", { class: "quiet" }, `${count(info.total_count)} ${wanted.size || prefix ? "match" : "in all"}${prefix ? ", by id" : ", newest first"}`),
      found.result.length ? tableOf(found.result) : h("p", { class: "empty" }, "No instance is here."),
      h(
        "nav",
        { class: "pager", "aria-label": "Pages" },
        h("button", { type: "button", disabled: trail.length < 2, on: { click: () => turn(null) } }, "Back"),
        h("span", {}, `Page ${count(trail.length)}`),
        h("button", { type: "button", disabled: later === null, on: { click: () => turn(later) } }, "On"),
      ),
    );
  }

  function tableOf(rows) {
    const head = COLUMNS.map((name) => h("th", { scope: "col", role: "columnheader" }, name));
    return h(
      "table",
      { role: "table" },
      h("caption", { class: "hidden" }, `Instances of ${workflow}`),
      h("thead", {}, h("tr", { role: "row" }, head)),
      h("tbody", {}, rows.map(rowOf)),
    );
  }

  function rowOf(row) {
    const cell = (name, child) => h("td", { role: "cell", "data-label": name }, child);
    const href = link("a", account, "w", workflow, "i", row.id);
    const ended = row.ended_on ? Date.parse(row.ended_on) : Date.now();
    return h(
      "tr",
      { role: "row", key: row.id },
      h("th", { scope: "row", role: "rowheader", "data-label": "Instance" }, h("a", { href, class: "id" }, row.id)),
      cell("Status", status(row.status)),
      cell("Created", moment(row.created_on)),
      cell("Started", moment(row.started_on)),
      cell("Took", row.started_on ? duration(ended - Date.parse(row.started_on)) : "-"),
      cell("Made by", row.trigger_source),
    );
  }

  function change() {
    changeMany(words, { statuses: [...wanted], prefix }, () => poll.now());
  }
}
