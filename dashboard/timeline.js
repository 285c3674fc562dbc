// The steps of an instance over time: how long, how often, what failed, what is open.

import { restartFrom } from "./actions.js";
import { h } from "./dom.js";
import { clock, count, duration, errorText, exact, moment, payload } from "./format.js";
import { result } from "./http.js";

const KINDS = { step: "step", sleep: "sleep", waitForEvent: "wait", rollback: "undo", startChild: "start", child: "child", termination: "end" };

// `more`: shows earlier steps, if there may be any.
export function timelineOf(words, detail, { mayWrite, done, more }) {
  const steps = [...detail.steps].reverse();
  const isCut = steps.filter((step) => step.type !== "termination" && step.type !== "rollback").length < detail.step_count;
  const times = steps.flatMap((step) => [Date.parse(step.start), isOpen(step) ? NaN : Date.parse(step.end)]).filter((at) => !Number.isNaN(at));
  const from = times.length ? Math.min(...times) : 0;
  const until = detail.end ? Math.max(Date.parse(detail.end), ...times) : Math.max(Date.now(), ...times);
  return h(
    "section",
    { class: "panel", key: "steps" },
    h("h2", {}, "Steps"),
    steps.length ? h("p", { class: "quiet" }, `From ${exact(new Date(from).toISOString())}, over ${duration(until - from)}`) : h("p", { class: "empty" }, "No step has begun."),
    isCut && h("p", { class: "quiet" }, `The newest ${count(steps.length)} of ${count(detail.step_count)} are shown. `,
      more ? h("button", { type: "button", class: "small", on: { click: more } }, "Show earlier ones") : "All are in the history below."),
    h("div", { class: "timeline" }, steps.map((step) => rowOf(step))),
  );

  function rowOf(step) {
    const at = Date.parse(step.start);
    const end = isOpen(step) ? Date.now() : Date.parse(step.end);
    const span = Math.max(1, until - from);
    const vars = { "--from": (at - from) / span, "--size": Math.max(0, Math.min(end, until) - at) / span };
    const failed = (step.attempts ?? []).filter((attempt) => attempt.success === false).length;
    const kind = KINDS[step.type] ?? step.type;
    const state = stateOf(step);
    return h(
      "details",
      { key: `${detail.run_id} ${step.type} ${step.name}`, class: `step ${state}` },
      h(
        "summary",
        {},
        h("span", { class: "name" }, h("span", { class: "kind" }, kind), " ", step.name),
        h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: "span", vars })),
        h("span", { class: "took" }, isOpen(step) ? "" : duration(end - at), h("span", { class: "state" }, ` ${state}`),
          failed ? h("span", { class: "bad" }, ` ${failed} failed`) : null),
      ),
      h("div", { class: "inner" }, detailsOf(step)),
    );
  }

  function detailsOf(step) {
    const config = step.config;
    const hasOutput = step.output !== undefined && !isOpen(step) && !step.error;
    return [
      h("p", {}, "Began ", clock(step.start), isOpen(step) ? planned(step) : [", ended ", clock(step.end)]),
      step.event_type !== undefined && h("p", {}, "Event of type ", h("code", {}, step.event_type)),
      step.child && h("p", {}, `Child ${step.child.id} of ${step.child.workflow}`),
      step.retry_at && h("p", {}, "Tried again ", moment(step.retry_at)),
      step.interruptions > 0 && h("p", {}, `${count(step.interruptions)} attempts were cut off by a crash; they are no failures.`),
      step.trigger && h("p", {}, `Asked for by ${step.trigger.source}`),
      step.error && h("p", {}, errorText(step.error)),
      step.attempts?.length > 0 && attemptsOf(step),
      config && h("p", { class: "quiet" }, `${config.retries.limit} retries, ${config.retries.backoff}, delay ${typeof config.retries.delay === "number" ? duration(config.retries.delay) : config.retries.delay}; ${duration(config.timeout)} for an attempt${config.deadline ? `, ${duration(config.deadline)} in all` : ""}${config.sensitive ? `; ${config.sensitive} is hidden` : ""}`),
      hasOutput && payload("Output", step.output, step.output_bytes, () => outputOf(step)),
      mayWrite && ["step", "sleep", "waitForEvent", "startChild", "child"].includes(step.type)
        && h("button", { type: "button", class: "small", on: { click: () => restartFrom(words, step, done) } }, "Restart from here"),
    ];
  }

  async function outputOf(step) {
    const query = { name: step.name, type: step.type, as: "json" };
    return (await result("getStep", words, { query })).output;
  }
}

function attemptsOf(step) {
  const first = step.attempts_total - step.attempts.length;
  return [
    first > 0 && h("p", { class: "quiet" }, `The first ${count(first)} attempts are not kept.`),
    h("ol", { start: first + 1 }, step.attempts.map((attempt) => {
      const took = attempt.end ? duration(Date.parse(attempt.end) - Date.parse(attempt.start)) : "runs";
      return h("li", {}, clock(attempt.start), `, ${took}`, attempt.error ? [": ", errorText(attempt.error)] : attempt.success ? ", succeeded" : "");
    })),
  ];
}

function planned(step) {
  if (step.type === "sleep") return [", wakes ", moment(step.end)];
  return step.type === "waitForEvent" ? [", gives up ", moment(step.end)] : "";
}

function isOpen(step) {
  return "finished" in step ? !step.finished : step.end === null;
}

function stateOf(step) {
  if (step.type === "termination") return "terminated";
  if (isOpen(step)) return step.retry_at ? "retrying" : step.type === "step" || step.type === "rollback" ? "running" : "waiting";
  return step.error ? "errored" : "complete";
}
