// Addresses within the page: `#/a/ACCOUNT/w/WORKFLOW/i/INSTANCE?status=...`, each word percent-encoded.

export function link(...words) {
  return `#/${words.map(encodeURIComponent).join("/")}`;
}

export function wordsOf(hash) {
  const path = hash.replace(/^#\/?/, "").split("?")[0];
  try {
    return path ? path.split("/").map(decodeURIComponent) : [];
  } catch {
    return ["?"]; // no such page
  }
}

export function queryOf(hash) {
  return new URLSearchParams(hash.split("?")[1] ?? "");
}

export function withQuery(href, query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return text ? `${href}?${text}` : href;
}

// Change the address; the view of the new one is shown then.
export function go(href, replaces = false) {
  if (!replaces) {
    location.hash = href;
    return;
  }
  history.replaceState(null, "", href);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
