// Changes of all instances that a filter finds: a hundred at a time, counted, and stopped when asked.

import { confirm, field } from "./dialog.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { call, newKey, result } from "./http.js";

const BATCH = 100;
const ERRORS_SHOWN = 20;
const TRIES = 5;
const CHANGES = [
  ["terminate", "Terminate: they end at once"],
  ["rollback", "Terminate, and undo their steps first"],
  ["cancel", "Cancel: run may clean up"],
  ["pause", "Pause"],
  ["resume", "Resume"],
  ["restart", "Restart: a new run of each, from its beginning"],
  ["delete", "Delete: nothing of them is left"],
];

export async function changeMany(words, filter, done) {
  const query = { per_page: 1, status: filter.statuses.join(","), prefix: filter.prefix };
  const info = (await call("listInstances", words, { query })).result_info;
  const choice = h("select", { name: "change", required: true }, CHANGES.map(([value, text]) => h("option", { value }, text)));
  const name = h("input", { name: "workflow", required: true, autocomplete: "off", spellcheck: "false" });
  const scope = [
    filter.statuses.length ? `in status ${filter.statuses.join(", ")}` : "in every status",
    filter.prefix ? `with ids that begin with "${filter.prefix}"` : null,
  ].filter(Boolean).join(" and ");
  let isStopped = false;
  document.getElementById("dialog").addEventListener("close", () => { isStopped = true; }, { once: true });
  confirm({
    title: "Change all that match",
    text: [
      h("b", {}, `${count(info.total_count)} instances of ${words.workflow_name}`),
      `Those ${scope}, oldest first. Those made meanwhile may be left out. Closing this stops it.`,
    ],
    fields: [field("What to do", choice), field("Type the workflow's name to confirm", name)],
    label: "Change them",
    isDanger: true,
    act,
  });

  async function act(values, _key, show) {
    if (values.get("workflow") !== words.workflow_name) {
      throw new Error(`The name is not ${words.workflow_name}; nothing was changed.`);
    }
    const change = values.get("change");
    const errors = [];
    let changed = 0;
    let refused = 0;
    let cursor;
    while (!isStopped) {
      const told = await batch(change, cursor).catch((error) => {
        error.message = `After ${count(changed)} changed and ${count(refused)} refused: ${error.message}`;
        throw error;
      });
      changed += (told.changed ?? told.deleted).length;
      refused += told.errors.length;
      errors.push(...told.errors.slice(0, ERRORS_SHOWN - errors.length));
      show(h("p", { "aria-live": "polite" }, `${count(changed)} changed, ${count(refused)} refused ...`));
      cursor = told.cursor;
      if (!cursor) break;
    }
    done();
    return [
      h("p", { role: "status" }, h("b", {}, `${count(changed)} changed, ${count(refused)} refused.`)),
      errors.length ? h("ul", { class: "refused" }, errors.map((one) => h("li", {}, h("b", {}, one.id), `: ${one.message}`))) : null,
      refused > errors.length ? h("p", { class: "quiet" }, `${count(refused - errors.length)} more refusals are not shown.`) : null,
    ];
  }

  // One batch, sent again under its key while it is unknown whether it was done.
  async function batch(change, cursor) {
    const key = newKey();
    const json = { filter: { prefix: filter.prefix }, limit: BATCH, cursor };
    if (filter.statuses.length) json.filter.status = filter.statuses;
    const isDeletion = change === "delete";
    if (!isDeletion) json.status = change === "rollback" ? "terminate" : change;
    if (change === "rollback") json.rollback = true;
    for (let tries = 1; ; tries += 1) {
      try {
        return await result(isDeletion ? "deleteInstances" : "changeStatuses", words, { json, key });
      } catch (error) {
        if (!(error.isAway || error.status === 429) || tries >= TRIES) throw error;
        await new Promise((resume) => setTimeout(resume, Math.max(error.waitMs ?? 0, 1_000)));
      }
    }
  }
}
