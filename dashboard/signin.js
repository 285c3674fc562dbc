// Signing in: the token is asked for, tried, and kept for this tab only.

import { h, render } from "./dom.js";
import { result, token } from "./http.js";

const THEME = "toque.theme";
const THEMES = ["auto", "light", "dark"];

// Shows the form; `done` is told what the token stands for.
export function signIn(place, message, done) {
  const input = h("input", {
    id: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": "token-help",
  });
  const button = h("button", { type: "submit", class: "main" }, "Sign in");
  const told = h("div", { role: "alert" });
  const form = h(
    "form",
    { class: "signin", on: { submit } },
    h("h1", {}, "Sign in to toque"),
    h("label", { for: "token" }, "Bearer token"),
    input,
    h("p", { id: "token-help", class: "quiet" },
      "It stays in this tab and is forgotten when the tab is closed. ",
      "toque dev keeps one in dev.json of its data directory; toque tokens create makes others."),
    told,
    button,
  );
  place.append(form);
  if (message) render(told, h("p", { class: "bad" }, message));
  input.focus();

  async function submit(event) {
    event.preventDefault();
    const text = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(text)) {
      render(told, h("p", { class: "bad" }, "A token is letters, digits and signs, without blanks."));
      return;
    }
    button.disabled = true;
    render(told);
    token.set(text);
    try {
      done(await result("whoami"));
    } catch (error) {
      token.drop();
      render(told, h("p", { class: "bad" }, error.message));
      button.disabled = false;
      input.select();
      input.focus();
    }
  }
}

// Light, dark, or as the system has it.
export function themeButton() {
  const button = h("button", { type: "button", class: "small", on: { click: turn } });
  name(themeNow());
  return button;

  function turn(event) {
    const next = THEMES[(THEMES.indexOf(themeNow()) + 1) % THEMES.length];
    localStorage.setItem(THEME, next);
    apply(next);
    name(next, event.currentTarget);
  }

  function name(theme, node = button) {
    node.textContent = { auto: "\u25d0", light: "\u2600", dark: "\u263e" }[theme];
    node.title = `Colours: ${theme}`;
    node.setAttribute("aria-label", `Colours: ${theme}; change`);
  }
}

function themeNow() {
  const kept = localStorage.getItem(THEME);
  return THEMES.includes(kept) ? kept : "auto";
}

function apply(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

apply(themeNow());
