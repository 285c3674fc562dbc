// The page's life: signing in, which view the address means, and the bar above all views.

import { h, loading, problem, render, say } from "./dom.js";
import { call, result, token } from "./http.js";
import { showInstance } from "./instance.js";
import { showInstances } from "./instances.js";
import { showLimits } from "./limits.js";
import { showMigration } from "./migration.js";
import { showOverview } from "./overview.js";
import { Poll } from "./poll.js";
import { signIn, themeButton } from "./signin.js";
import { showServer } from "./server.js";
import { status } from "./format.js";
import { go, link, wordsOf } from "./route.js";

const top = document.getElementById("top");
const main = document.getElementById("main");
let who = null;
let stop = () => {};

const VIEWS = [
  ["accounts", showAccounts],
  ["server", showServer],
  ["a/:account", showOverview],
  ["a/:account/limits", showLimits],
  ["a/:account/limits/:workflow", showLimits],
  ["a/:account/migration", showMigration],
  ["a/:account/w/:workflow", showInstances],
  ["a/:account/w/:workflow/i/:instance", showInstance],
];

// The view that an address means, and its words; or nothing.
function viewOf(words) {
  for (const [pattern, view] of VIEWS) {
    const parts = pattern.split("/");
    const isIt = parts.length === words.length && parts.every((part, at) => part[0] === ":" || part === words[at]);
    if (!isIt) continue;
    const named = parts.flatMap((part, at) => (part[0] === ":" ? [[part.slice(1), words[at]]] : []));
    return [view, Object.fromEntries(named)];
  }
  return null;
}

function home() {
  return who.account === "*" ? link("accounts") : link("a", who.account);
}

function showBar(words) {
  const account = words[0] === "a" ? words[1] : who?.account === "*" ? null : who?.account;
  const isOperator = who?.account === "*";
  const item = (text, href, isHere) => h("a", { href, "aria-current": isHere ? "page" : null }, text);
  const items = who && [
    isOperator && item("Accounts", link("accounts"), words[0] === "accounts"),
    account && item("Workflows", link("a", account), words[0] === "a" && (!words[2] || words[2] === "w")),
    account && item("Limits", link("a", account, "limits"), words[2] === "limits"),
    isOperator && account && item("Migration", link("a", account, "migration"), words[2] === "migration"),
    isOperator && item("Server", link("server"), words[0] === "server"),
  ];
  const name = isOperator ? "operator" : who?.account;
  const named = who?.name ? `token "${who.name}", may ${who.scope}` : `may ${who?.scope}`;
  render(
    top,
    h("a", { class: "brand", href: who ? home() : "#/" }, "toque"),
    who && h("nav", { "aria-label": "Main" }, items),
    h(
      "div",
      { class: "who" },
      who && h("span", { title: named }, h("b", {}, name), h("span", { class: "quiet" }, ` ${who.scope}`)),
      themeButton(),
      who && h("button", { type: "button", class: "small", on: { click: () => leave() } }, "Sign out"),
    ),
  );
}

function leave(message) {
  token.drop();
  who = null;
  show(message);
}

// What a view may use: who looks, and what to do when it can't go on.
function contextOf(view) {
  return {
    who,
    may: (scope) => ["read", "write", "admin"].indexOf(who.scope) >= ["read", "write", "admin"].indexOf(scope),
    failed: (error) => {
      if (error.status === 401) leave(error.message);
      else if (view === stop.view) {
        stop();
        stop = () => {};
        main.replaceChildren(problem(error));
      }
    },
  };
}

function show(message) {
  stop();
  stop = () => {};
  main.replaceChildren();
  const words = wordsOf(location.hash);
  showBar(who ? words : []);
  document.title = who && words.length > 1 ? `${words.filter((w) => w.length > 1).at(-1)} - toque` : "toque";
  if (!who) {
    signIn(main, message, (found) => {
      who = found;
      show();
      main.focus();
    });
    return;
  }
  if (words.length === 0) {
    go(home(), true);
    return;
  }
  const found = viewOf(words);
  if (!found) {
    render(main, problem(new Error("There is no such page.")));
    return;
  }
  const [view, named] = found;
  const mark = {};
  const context = contextOf(mark);
  const ending = view(main, context, named);
  stop = ending;
  stop.view = mark;
}

function showAccounts(place, context) {
  const box = h("div", {});
  place.append(h("h1", {}, "Accounts"), box);
  render(box, loading());
  let page = 1;
  const turn = (by) => {
    page += by;
    poll.now();
  };
  const poll = new Poll(
    async (signal) => {
      const told = await call("listAccounts", {}, { query: { page, per_page: 50 }, signal });
      const rows = told.result.map((each) =>
        h(
          "tr",
          { key: each.id, role: "row" },
          h("th", { scope: "row", role: "rowheader", "data-label": "Account" }, h("a", { href: link("a", each.id) }, each.id)),
          h("td", { role: "cell", "data-label": "Name" }, each.name),
          h("td", { role: "cell", "data-label": "Plane" }, each.control_plane ? planeMark(each.control_plane) : "unknown"),
        ),
      );
      const head = ["Account", "Name", "Control plane"].map((name) => h("th", { scope: "col", role: "columnheader" }, name));
      const pages = told.result_info.total_pages;
      render(
        box,
        h("table", { role: "table" }, h("thead", {}, h("tr", { role: "row" }, head)), h("tbody", {}, rows)),
        pages > 1 && h(
          "div",
          { class: "pager" },
          h("button", { type: "button", disabled: page <= 1, on: { click: () => turn(-1) } }, "Previous"),
          h("span", {}, `Page ${page} of ${pages}`),
          h("button", { type: "button", disabled: page >= pages, on: { click: () => turn(1) } }, "Next"),
        ),
      );
    },
    5_000,
    context.failed,
  );
  return () => poll.stop();
}

const planeMark = (plane) => (plane === "moving" ? status("moving") : plane.toUpperCase());

function start() {
  window.addEventListener("hashchange", () => {
    show();
    if (who) main.focus();
    window.scrollTo(0, 0);
  });
  if (!token.get()) {
    show();
    return;
  }
  render(main, loading());
  const poll = new Poll(
    async (signal) => {
      who = await result("whoami", {}, { signal });
      poll.stop();
      show();
    },
    1_000,
    (error) => leave(error.message),
  );
}

window.addEventListener("unhandledrejection", (told) => say(told.reason?.message ?? "Something failed.", true));
start();
