// Why an instance does not go on, in sentences.

import { h } from "./dom.js";
import { count, errorText, moment } from "./format.js";

const STATES = {
  queued: "It is in the queue.",
  granted: "A slot is its own, or on its way.",
  elsewhere: "Its report to the queue is on its way.",
};

const SENTENCES = {
  slot: () => "It waits for a slot.",
  pause: () => "It is paused, or is to be when its steps in flight have ended.",
  step: (why) => `Step ${why.name} runs${why.attempt > 1 ? `, attempt ${why.attempt}` : ""}.`,
  rollback: (why) => `What undoes step ${why.name} runs.`,
  task: (why) => `Step ${why.name} runs as a Ray task, or waits for its resources.`,
  retry: (why) => `Step ${why.name} failed, and is to be tried again (attempt ${why.attempt}).`,
  sleep: (why) => `It sleeps: ${why.name}.`,
  event: (why) => `It waits for an event of type ${why.event_type}: ${why.name}.`,
  timer: () => "It waits for a timer of asyncio.",
  worker: () => "It waits for the process that it is to run in.",
  code: () => "Its code can't be loaded.",
};

export function waitingOf(told) {
  const slot = told.slot;
  return h(
    "section",
    { class: "panel why", key: "why" },
    h("h2", {}, told.status === "running" ? "What it does" : "Why it waits"),
    h("p", { class: "quiet" }, told.status, " since ", moment(told.since), told.in_memory ? "; in memory" : "; out of memory"),
    told.reasons.length ? h("ul", {}, told.reasons.map(reasonOf)) : null,
    told.more > 0 && h("p", { class: "quiet" }, `and ${count(told.more)} more`),
    slot && slotOf(slot),
    told.buffered.length
      ? h("ul", {}, told.buffered.map((one) => h("li", {}, `${count(one.count)} events of type `, h("code", {}, one.type), " have come, the oldest ", moment(one.oldest), one.awaited ? "" : "; no wait asks for them")))
      : null,
  );
}

function reasonOf(why) {
  const sentence = SENTENCES[why.kind] ?? ((other) => `${other.kind} ${other.name ?? ""}`);
  return h(
    "li",
    {},
    sentence(why),
    why.since ? [" Since ", moment(why.since), "."] : null,
    why.due ? [" Due ", moment(why.due), "."] : null,
    why.error ? [" ", errorText(why.error)] : null,
  );
}

function slotOf(slot) {
  const place = slot.position ? `It is number ${count(slot.position)} of the lane "${slot.lane}" there.` : "";
  const whose = slot.limited_by === "workflow" ? "The workflow's own limit holds it back." : "The account's slots are what it waits for.";
  return h(
    "p",
    {},
    STATES[slot.state] ?? slot.state,
    ` ${place} ${count(slot.queued)} queue in all; ${count(slot.holding)} of ${count(slot.target)} leased slots are in use there. ${slot.state === "queued" ? whose : ""} `,
    h("span", { class: "quiet" }, `(queue ${slot.souschef})`),
  );
}
