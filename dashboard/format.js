// Figures, times and values for people.

import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en");
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const FINE = { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 };
const time = new Intl.DateTimeFormat("en-GB", FINE);
const dayAndTime = new Intl.DateTimeFormat("en-GB", { ...FINE, day: "numeric", month: "short" });

export const count = (number) => whole.format(number ?? 0);

export function rate(number) {
  return number >= 100 ? count(Math.round(number)) : number.toFixed(number >= 10 ? 0 : 1);
}

export function bytes(number) {
  if (number < 1024) return `${number} bytes`;
  return number < 1024 * 1024 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / 1024 / 1024).toFixed(1)} MiB`;
}

const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

// A length of time in its two largest units.
export function duration(ms) {
  if (ms < 0) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${ms % 1000 === 0 ? ms / 1000 : (ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  let rest = Math.round(ms / 1000);
  const parts = [];
  for (const [unit, seconds] of UNITS) {
    const number = Math.floor(rest / seconds);
    rest -= number * seconds;
    if (number) parts.push(`${number} ${unit}`);
    else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

// A moment: how far away it is, and exactly as its title.
export function moment(iso, now = Date.now()) {
  if (!iso) return h("span", { class: "quiet" }, "-");
  const at = Date.parse(iso);
  const away = now - at;
  const far = duration(Math.abs(away) < 60_000 ? Math.floor(Math.abs(away) / 1000) * 1000 : Math.abs(away));
  const text = Math.abs(away) < 1000 ? "now" : away > 0 ? `${far} ago` : `in ${far}`;
  return h("time", { datetime: iso, title: exact(iso) }, text);
}

// A moment as a clock tells it, with the day if it is another one.
export function clock(iso) {
  const at = new Date(iso);
  const isToday = at.toDateString() === new Date().toDateString();
  return h("time", { datetime: iso, title: exact(iso) }, (isToday ? time : dayAndTime).format(at));
}

export const exact = (iso) => `${day.format(new Date(iso))} (${iso})`;

const MARKS = {
  queued: "\u25d4", running: "\u25b6", waiting: "\u25cc", paused: "\u2016", waitingForPause: "\u2016",
  rollingBack: "\u21ba", complete: "\u2713", errored: "\u2717", terminated: "\u25a0",
};

// A status, told by word, mark and colour.
export function status(word) {
  const known = Object.hasOwn(MARKS, word) ? word : "other";
  return h("span", { class: `status ${known}` }, h("span", { "aria-hidden": "true" }, MARKS[word] ?? "\u00b7"), " ", word);
}

export function errorText(error) {
  if (!error) return null;
  const text = h("span", { class: "bad" }, `${error.name}: ${error.message}`);
  return error.at?.length ? [text, " ", h("code", { class: "at" }, error.at.join(" \u203a "))] : text;
}

export function json(value) {
  return typeof value === "string" ? JSON.stringify(value) : JSON.stringify(value, null, 2);
}

const SHOWN_CHARS = 1_500;
const MORE_CHARS = 200_000;

// A value as JSON, a part at first. `fetchAll`: gives it, where it was too long to be sent along.
export function payload(title, value, size, fetchAll) {
  const text = size === undefined ? json(value) : null;
  const box = h("section", { class: "payload", keep: true, key: `${title} ${text ?? size}` });
  show(text, SHOWN_CHARS);
  return box;

  function show(all, most) {
    const label = h("h3", {}, title);
    if (all === null) {
      const button = h("button", { type: "button", class: "small", on: { click: load } }, "Show it");
      box.replaceChildren(label, h("p", { class: "quiet" }, `It has ${bytes(size)}. `, button));
      return;
    }
    const shown = h("pre", { tabindex: "0", "aria-label": title }, all.slice(0, most));
    const rest = all.length - most;
    const isLast = most >= MORE_CHARS;
    const told = `Show ${count(Math.min(rest, MORE_CHARS))} more characters`;
    const more = isLast
      ? h("p", { class: "quiet" }, `${count(rest)} more characters are not shown here.`)
      : h("button", { type: "button", class: "small", on: { click: () => show(all, MORE_CHARS) } }, told);
    box.replaceChildren(label, shown, ...(rest > 0 ? [more] : []));
  }

  async function load(event) {
    event.target.disabled = true;
    try {
      show(json(await fetchAll()), MORE_CHARS);
    } catch (error) {
      box.append(h("p", { class: "bad" }, error.message));
      event.target.disabled = false;
    }
  }
}
