// Calls of the HTTP API: the token, timeouts, typed errors, and subscriptions to events.

import { OPERATIONS } from "./operations.js";

const TOKEN = "toque.token";
const TIMEOUT_MS = 40_000;
const LINE_CHARS_MAX = 4_000_000;

// The folder above the page's own: it works behind a proxy that puts a prefix before all paths.
const BASE = new URL("../", import.meta.url).href;

// The token is kept for this tab, and nowhere else.
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => sessionStorage.setItem(TOKEN, text),
  drop: () => sessionStorage.removeItem(TOKEN),
};

export class ApiError extends Error {
  // `code` is the API's stable name of the error; "away": nobody answered.
  constructor(message, code, status, waitMs = 0) {
    super(message);
    this.code = code;
    this.status = status;
    this.waitMs = waitMs;
  }

  get isAway() {
    return this.code === "away" || [502, 503, 504].includes(this.status);
  }
}

export function newKey() {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}

function urlOf(name, words, query) {
  const [method, template] = OPERATIONS[name].split(" ");
  const path = template.slice(1).replace(/\{(\w+)\}/g, (_, word) => {
    const text = String(words[word] ?? "");
    if (text === "" || text === "." || text === "..") {
      throw new ApiError(`${JSON.stringify(text)} names nothing.`, "page.bad_address", 404);
    }
    return encodeURIComponent(text);
  });
  const asked = new URLSearchParams();
  for (const [key, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") asked.set(key, String(value));
  }
  const text = asked.toString();
  return { method, url: BASE + path + (text ? `?${text}` : "") };
}

// JSON whose whole numbers stay exact, also those that JavaScript's own numbers can't hold.
function parse(text) {
  return JSON.parse(text, (key, value, told) => {
    if (typeof value !== "number" || !told?.source || !JSON.rawJSON) return value;
    const isHeld = Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
    return isHeld ? value : JSON.rawJSON(told.source);
  });
}

async function errorOf(answer) {
  const waitMs = Number(answer.headers.get("retry-after") ?? 0) * 1000;
  try {
    const told = (await answer.json()).errors[0];
    return new ApiError(told.message, told.toque?.code ?? String(told.code), answer.status, waitMs);
  } catch {
    const what = `The server answered with status ${answer.status}, and not as toque does.`;
    return new ApiError(what, `http.${answer.status}`, answer.status, waitMs);
  }
}

async function ask(name, words, { query, body, key, signal } = {}) {
  const { method, url } = urlOf(name, words, query);
  const headers = { authorization: `Bearer ${token.get()}` };
  if (key) headers["idempotency-key"] = key;
  let answer;
  try {
    answer = await fetch(url, {
      method, headers, body, signal, cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("The server does not answer.", "away", 0);
  }
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

// The whole answer to a call: `result`, `result_info`. Raises ApiError.
export async function call(name, words = {}, options = {}) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  const body = options.json === undefined ? options.body : JSON.stringify(options.json);
  try {
    const answer = await ask(name, words, { ...options, body, signal });
    if (!(answer.headers.get("content-type") ?? "").includes("json")) {
      throw new ApiError("The answer is not JSON: is this a toque server?", "away", answer.status);
    }
    return parse(await answer.text());
  } catch (error) {
    if (error instanceof ApiError || options.signal?.aborted) throw error;
    throw new ApiError("The server did not answer in time.", "away", 0);
  }
}

export async function result(name, words, options) {
  return (await call(name, words, options)).result;
}

// What happens to an instance past a cursor, as it happens; ends when the instance has.
export async function* subscribe(words, cursor, signal) {
  const answer = await ask("subscribe", words, { query: { cursor }, signal });
  if (answer.status === 204) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      if (text.length > LINE_CHARS_MAX) throw new ApiError("An event is too long.", "away", 0);
      const frames = text.split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const data = frame.split("\n").find((line) => line.startsWith("data: "));
        if (frame.startsWith("event: error") || data === undefined) continue;
        yield parse(data.slice(6));
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it is closed already
  }
}
