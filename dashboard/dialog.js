// Asks before anything is changed: what will be done, to what; and shows what the API answers.

import { h, problem, render } from "./dom.js";
import { newKey } from "./http.js";

const dialog = document.getElementById("dialog");

// Opens the dialog.
//   title, text: what will be done.
//   fields: nodes to fill in, within the form.
//   label: of the button that does it; `isDanger`: it can't be undone.
//   act: does it, with the form's values and a key under which it takes effect once. Whatever it raises is
//     shown. It may return a text, which is then shown in place of the form; else the dialog closes.
export function confirm({ title, text, fields = [], label, isDanger = false, act }) {
  let key = newKey();
  const told = h("div", {});
  const button = h("button", { type: "submit", class: isDanger ? "danger" : "main" }, label);
  const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Back");
  const form = h(
    "form",
    { method: "dialog", on: { submit } },
    h("h2", { id: "dialog-title" }, title),
    [text].flat().map((line) => h("p", {}, line)),
    fields,
    told,
    h("div", { class: "buttons" }, cancel, button),
  );
  dialog.replaceChildren(form);
  dialog.showModal();
  (form.querySelector("input:not([type=checkbox]), select, textarea") ?? cancel).focus();

  async function submit(event) {
    event.preventDefault();
    button.disabled = true;
    render(told, h("p", { class: "quiet" }, "Asking ..."));
    try {
      const answer = await act(new FormData(form), key, (...nodes) => render(told, ...nodes));
      if (answer === undefined) {
        dialog.close();
        return;
      }
      render(told, answer);
      button.remove();
      cancel.textContent = "Close";
      cancel.focus();
    } catch (error) {
      render(told, problem(error));
      button.disabled = false;
      // What was refused stays refused under its key; of what is unknown the same key finds out.
      if (!error.isAway) key = newKey();
    }
  }
}

export function field(label, input, help) {
  const id = `field-${input.getAttribute("name")}`;
  input.setAttribute("id", id);
  const told = help && h("p", { class: "quiet", id: `${id}-help` }, help);
  if (help) input.setAttribute("aria-describedby", `${id}-help`);
  return h("div", { class: "field" }, h("label", { for: id }, label), input, told);
}

export function isOpen() {
  return dialog.open;
}
