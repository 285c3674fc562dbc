// What may be done with an instance; each asks first, and says what it does.

import { confirm, field } from "./dialog.js";
import { h, say } from "./dom.js";
import { result } from "./http.js";
import { go, link } from "./route.js";

const ENDED = ["complete", "errored", "terminated"];

// Allowed while it has not ended: null; else in these statuses only. The API has the last word.
const CHANGES = [
  { change: "pause", label: "Pause", when: ["queued", "running", "waiting"], text: "Steps in flight end first; then it holds no slot until it is resumed." },
  { change: "resume", label: "Resume", when: ["paused", "waitingForPause"], text: "It goes on; its timers move by the length of the pause." },
  { change: "restart", label: "Restart", when: null, text: "A new run begins with the same id, params and code. All that this run has recorded is wiped." },
  { change: "cancel", label: "Cancel", when: ["queued", "running", "waiting", "paused", "waitingForPause"], text: "Its run is cancelled, and may clean up first.", isDanger: true },
  { change: "terminate", label: "Terminate", when: ["queued", "running", "waiting", "paused", "waitingForPause", "rollingBack"], text: "It ends at once; bodies in flight are cancelled and their results refused.", isDanger: true },
];

export function buttonsOf(words, detail, done) {
  const isOver = ENDED.includes(detail.status);
  const button = (label, isOff, click, isDanger) =>
    h("button", { type: "button", key: label, class: isDanger ? "danger" : null, disabled: isOff, on: { click } }, label);
  return [
    button("Send event", isOver, () => sendEvent(words, done)),
    CHANGES.map((one) => button(one.label, one.when !== null && !one.when.includes(detail.status), () => changeStatus(words, one, done), one.isDanger)),
    button("Delete", false, () => remove(words), true),
  ];
}

const named = (words) => h("span", {}, "Instance ", h("b", { class: "id" }, words.instance_id), ` of ${words.workflow_name}.`);

function changeStatus(words, { change, label, text, isDanger }, done) {
  const undo = h("input", { type: "checkbox", name: "rollback" });
  confirm({
    title: `${label} this instance?`,
    text: [named(words), text],
    fields: change === "terminate" ? [h("label", { class: "check" }, undo, " Undo first what its steps did (rollback)")] : [],
    label,
    isDanger,
    act: async (values, key) => {
      const json = { status: change };
      if (values.get("rollback")) json.rollback = true;
      const told = await result("changeStatus", words, { json, key });
      say(`${label}: it is ${told.status} now.`);
      done();
    },
  });
}

export function restartFrom(words, step, done) {
  const [, name, number] = /^(.*)-(\d+)$/s.exec(step.name) ?? [null, step.name, "1"];
  const type = step.type === "step" ? "do" : step.type;
  confirm({
    title: `Restart from ${step.name}?`,
    text: [named(words), "A new run begins. What steps gave that began before this one is kept; this one and all that began later are wiped."],
    label: "Restart from here",
    act: async (_values, key) => {
      const json = { status: "restart", from: { name, count: Number(number), type } };
      const told = await result("changeStatus", words, { json, key });
      say(`Restarted from ${step.name}: it is ${told.status} now.`);
      done();
    },
  });
}

function remove(words) {
  confirm({
    title: "Delete this instance?",
    text: [named(words), "Nothing of it is left, whatever it does now, and its id is free at once."],
    label: "Delete",
    isDanger: true,
    act: async (_values, key) => {
      await result("deleteInstance", words, { key });
      say(`Deleted ${words.instance_id}.`);
      go(link("a", words.account_id, "w", words.workflow_name));
    },
  });
}

function sendEvent(words, done) {
  const type = h("input", { name: "type", required: true, autocomplete: "off", spellcheck: "false" });
  const body = h("textarea", { name: "payload", rows: "5", spellcheck: "false" });
  confirm({
    title: "Send an event",
    text: named(words),
    fields: [field("Type", type), field("Payload", body, "JSON; nothing is null.")],
    label: "Send",
    act: async (values, key) => {
      const sent = { ...words, event_type: values.get("type").trim() };
      await result("sendEvent", sent, { body: values.get("payload").trim() || undefined, key });
      say(`Sent an event of type ${sent.event_type}.`);
      done();
    },
  });
}
