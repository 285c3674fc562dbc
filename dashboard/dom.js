// How data becomes nodes: as text and attributes, never as HTML.

// A node. Properties: attributes by name; `on`: handlers by event; `vars`: CSS variables; `key`: finds
// it again when it is shown anew; `keep`: what is in it is left alone then.
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) put(node, name, value);
  append(node, children);
  return node;
}

function put(node, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name === "key" || name === "keep") {
    node[name] = value;
  } else if (name === "on") {
    node.handlers = {};
    for (const [event, handler] of Object.entries(value)) listen(node, event, handler);
  } else if (name === "vars") {
    for (const [variable, text] of Object.entries(value)) node.style.setProperty(variable, text);
  } else if (name.startsWith("on") || name === "style" || name === "src" || name === "srcdoc") {
    throw new Error(`${name} is not set here`);
  } else if (name === "href" && !String(value).startsWith("#")) {
    throw new Error("links stay on this page");
  } else {
    node.setAttribute(name, value === true ? "" : String(value));
  }
}

function listen(node, event, handler) {
  node.handlers ??= {};
  if (!(event in node.handlers)) node.addEventListener(event, (told) => node.handlers[event]?.(told));
  node.handlers[event] = handler;
}

function append(node, children) {
  node.append(...nodesOf(children));
}

function nodesOf(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

// Show nodes in a parent. What is there is changed to be like them, so that focus, selection, open
// details and what people type outlast it.
export function render(parent, ...children) {
  morphChildren(parent, nodesOf(children));
}

const isLike = (one, other) =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.key === other.key;

function morphChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.key !== undefined) keyed.set(child.key, child);
  let at = parent.firstChild;
  for (const node of wanted) {
    const known = node.key === undefined ? at : keyed.get(node.key);
    if (!known || !isLike(known, node)) {
      parent.insertBefore(node, at);
      continue;
    }
    if (known === at) at = at.nextSibling;
    else parent.insertBefore(known, at);
    if (known !== node) morph(known, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function morph(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  if (old.keep && node.keep) return;
  for (const { name } of [...old.attributes]) {
    const isState = name === "style" || (name === "open" && old.nodeName === "DETAILS");
    if (!isState && !node.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (name === "style" || (name === "open" && old.nodeName === "DETAILS")) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const variable of node.style ?? []) {
    const value = node.style.getPropertyValue(variable);
    if (old.style.getPropertyValue(variable) !== value) old.style.setProperty(variable, value);
  }
  for (const event of Object.keys(old.handlers ?? {})) {
    if (!(event in (node.handlers ?? {}))) old.handlers[event] = undefined;
  }
  for (const [event, handler] of Object.entries(node.handlers ?? {})) listen(old, event, handler);
  morphChildren(old, [...node.childNodes]);
}

// Tell everybody, screen readers too, in a line that goes by itself.
export function say(text, isError = false) {
  const place = document.getElementById("said");
  const line = h("p", { class: isError ? "line bad" : "line" }, text);
  place.append(line);
  while (place.childElementCount > 3) place.firstElementChild.remove();
  setTimeout(() => line.remove(), isError ? 12_000 : 6_000);
}

export function problem(error) {
  const code = error.code && error.code !== "away" ? h("code", {}, error.code) : null;
  return h("div", { class: "problem", role: "alert" }, h("p", {}, error.message), code);
}

export const loading = () => h("p", { class: "quiet" }, "Loading ...");
