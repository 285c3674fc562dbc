// The history of an instance: its numbered events, newest first, a window of numbers at a time, so that the
// page holds no more of a long history than of a short one.

import { h, problem, render } from "./dom.js";
import { clock, count, duration, errorText, payload } from "./format.js";
import { result } from "./http.js";

const WINDOW = 100;
// The cursor that such a filter leads to is the number of the newest event of all.
const TAIL_FILTER = "workflow_terminated";

export function showHistory(place, words, failed) {
  let until = null; // the greatest number of the window; null: it follows the newest
  let newest = 0;
  let events = [];
  let known = -1;
  const ended = new AbortController();
  const body = h("div", {});
  render(place, h("h2", {}, "History"), body);

  return { add, reset, tail, stop: () => ended.abort() };

  // Find the number of the newest event, and show what led to it; gives the number.
  async function tail() {
    try {
      let told = { cursor: Math.max(0, known), events: [null] };
      while (told.events.length) {
        const query = { cursor: told.cursor, filter: TAIL_FILTER };
        told = await result("getEvents", words, { query, signal: ended.signal });
      }
      if (told.cursor === known) return known;
      known = newest = told.cursor;
      if (until === null) await load();
      else show();
    } catch (error) {
      if (!ended.signal.aborted && !error.isAway) render(body, problem(error));
      throw error;
    }
    return known;
  }

  function add(event) {
    newest = known = Math.max(newest, event.eventId);
    if (until === null) events = [event, ...events].slice(0, WINDOW);
    show();
  }

  function reset() {
    known = -1;
    until = null;
  }

  async function load() {
    const last = until ?? newest;
    const first = Math.max(0, last - WINDOW);
    if (last > first) {
      const query = { cursor: first, limit: last - first };
      const told = await result("getEvents", words, { query, signal: ended.signal });
      events = told.events.filter((event) => event.eventId <= last).reverse();
    } else {
      events = [];
    }
    show();
  }

  function turn(to) {
    until = to === null || to >= newest ? null : Math.max(WINDOW, to);
    load().catch((error) => {
      if (error.status === 401) failed(error);
      else render(body, problem(error));
    });
  }

  function show() {
    const last = until ?? newest;
    const first = Math.max(0, last - WINDOW);
    const button = (text, to, isOff) => h("button", { type: "button", disabled: isOff, on: { click: () => turn(to) } }, text);
    render(
      body,
      h("p", { class: "quiet" }, newest ? `Events ${count(first + 1)} to ${count(last)} of ${count(newest)}, newest first${until === null ? "; more are added as they happen" : ""}` : "Nothing has happened yet."),
      h("ol", { class: "events", reversed: true }, events.map(eventOf)),
      newest > WINDOW && h("nav", { class: "pager", "aria-label": "Parts of the history" },
        button("Newest", null, until === null), button("Newer", last + WINDOW, until === null), button("Older", last - WINDOW, first === 0),
        button("Oldest", WINDOW, first === 0)),
    );
  }
}

function eventOf(event) {
  const bad = event.error !== undefined;
  const told = [
    event.attempt !== undefined && `attempt ${event.attempt}`,
    event.eventType !== undefined && `event ${event.eventType}`,
    event.durationMs !== undefined && `for ${duration(event.durationMs)}`,
    event.retryDelayMs !== undefined && event.retryDelayMs !== null && `again after ${duration(event.retryDelayMs)}`,
  ].filter(Boolean).join(", ");
  const iso = new Date(event.timestamp).toISOString();
  return h(
    "li",
    { key: event.eventId, class: bad ? "bad" : null },
    h("span", { class: "no" }, `${event.eventId}`),
    clock(iso),
    h("span", { class: "type" }, event.type),
    h("span", { class: "told" }, event.stepName === undefined ? null : h("b", {}, event.stepName), told ? ` ${told}` : null, event.error ? [" ", errorText(event.error)] : null,
      event.output !== undefined && event.output !== null ? h("details", {}, h("summary", {}, "output"), payload("Output", event.output)) : null,
      event.outputCut ? h("span", { class: "quiet" }, " (output too long to be told here)") : null),
  );
}
