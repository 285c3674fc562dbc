// One instance: how it stands, why it waits, what it did, and what may be done with it.

import { buttonsOf } from "./actions.js";
import { h, loading, render } from "./dom.js";
import { errorText, moment, payload, status } from "./format.js";
import { showHistory } from "./history.js";
import { result, subscribe } from "./http.js";
import { Poll } from "./poll.js";
import { link } from "./route.js";
import { timelineOf } from "./timeline.js";
import { waitingOf } from "./waiting.js";

const ENDED = new Set(["complete", "errored", "terminated"]);
const PERIOD_MS = 4_000;
const ENDED_PERIOD_MS = 15_000;
const GAP_MS = 1_000; // between two looks, however much happens
const FOLLOW_GAP_MS = 5_000; // between two attempts to subscribe
const PAYLOAD_BYTES = 4_096;
const STEPS = 100;
const STEPS_MORE = 400;
const STEPS_MAX = 500; // more cost the instance's shard a walk through its whole journal

export function showInstance(place, context, { account, workflow, instance }) {
  const words = { account_id: account, workflow_name: workflow, instance_id: instance };
  const head = h("div", {});
  const body = h("div", {});
  const past = h("section", { class: "panel" });
  let steps = STEPS;
  let detail = null;
  let timer = null;
  let live = null; // what ends the subscription, while there is one
  let followedAt = -Infinity;
  const list = link("a", account, "w", workflow);
  render(
    place,
    h("nav", { class: "crumbs", "aria-label": "Where this is" },
      h("a", { href: link("a", account) }, account), " / ", h("a", { href: list }, workflow), " / ", h("b", { class: "id" }, instance)),
    head, body, past,
  );
  render(body, loading());
  const history = showHistory(past, words, context.failed);
  const poll = new Poll(look, PERIOD_MS, context.failed);
  return () => {
    poll.stop();
    live?.abort();
    clearTimeout(timer);
    history.stop();
  };

  async function look(signal) {
    const query = { order: "desc", steps, payload_bytes: PAYLOAD_BYTES };
    const [found, waiting] = await Promise.all([
      result("getInstance", words, { query, signal }),
      result("getWaiting", words, { signal }).catch((error) => {
        if (error.isAway || signal.aborted || error.status === 401) throw error;
        return null; // it has just been deleted, or queues on V1 without an Engine
      }),
    ]);
    if (detail && detail.run_id !== found.run_id) unfollow();
    detail = found;
    show(waiting);
    const isOver = ENDED.has(found.status);
    poll.periodMs = isOver ? ENDED_PERIOD_MS : PERIOD_MS;
    const isDue = performance.now() - followedAt > FOLLOW_GAP_MS;
    if (!isOver && !live && isDue) follow();
    else if (isOver && !live) await history.tail().catch(() => {}); // it has told so
  }

  function show(waiting) {
    const isOver = ENDED.has(detail.status);
    render(
      head,
      h("div", { class: "titled" },
        h("h1", {}, h("span", { class: "id" }, instance), " ", status(detail.status)),
        h("div", { class: "buttons" }, context.may("write") ? buttonsOf(words, detail, () => poll.now()) : h("p", { class: "quiet" }, "This token may only read."))),
    );
    render(
      body,
      !isOver && waiting && waitingOf(waiting),
      ends(),
      facts(),
      h("div", { class: "pair", key: "payloads" },
        payload("Params", detail.params, detail.params_bytes, async () => (await whole()).params),
        isOver && payload("Output", detail.output, detail.output_bytes, async () => (await whole()).output)),
      timelineOf(words, detail, { mayWrite: context.may("write"), done: () => poll.now(), more: steps < STEPS_MAX ? more : null }),
    );
  }

  function whole() {
    return result("getInstance", words, { query: { simple: "true" } });
  }

  function more() {
    steps = Math.min(STEPS_MAX, steps + STEPS_MORE);
    poll.now();
  }

  function ends() {
    const undone = detail.rollback;
    return [
      detail.error && h("section", { class: "panel error", key: "error" }, h("h2", {}, "Why it ended"), h("p", {}, errorText(detail.error)),
        detail.error.data === undefined ? null : payload("Details", detail.error.data)),
      undone && h("section", { class: "panel", key: "rollback" }, h("h2", {}, "Rollback"), h("p", {}, undone.outcome, undone.error ? [": ", errorText(undone.error)] : null)),
    ];
  }

  function facts() {
    const fact = (name, ...children) => h("div", {}, h("dt", {}, name), h("dd", {}, children));
    return h(
      "dl",
      { class: "facts", key: "facts" },
      fact("Created", moment(detail.created_on), ` by ${detail.trigger.source}`),
      fact("Started", moment(detail.start)),
      fact("Ended", moment(detail.end)),
      fact("Changed", moment(detail.modified_on)),
      fact("Steps", String(detail.step_count)),
      detail.continued > 0 && fact("Continued as new", `${detail.continued} times`),
      fact("Version", h("code", {}, detail.versionId), detail.code_changed ? h("b", { class: "bad" }, " runs on other code than it began with") : null),
      fact("Run", h("code", {}, detail.run_id)),
    );
  }

  // Look soon, since something has happened.
  function soon() {
    timer ??= setTimeout(() => {
      timer = null;
      poll.soon();
    }, GAP_MS);
  }

  function unfollow() {
    live?.abort();
    live = null;
    followedAt = -Infinity;
    history.reset();
  }

  async function follow() {
    const mine = (live = new AbortController());
    followedAt = performance.now();
    try {
      const tail = await history.tail();
      for await (const event of subscribe(words, tail, mine.signal)) {
        history.add(event);
        soon();
      }
    } catch {
      // the look, which goes on, tells what is wrong
    }
    if (live === mine) {
      live = null;
      soon();
    }
  }
}
