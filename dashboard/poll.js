// Asking again and again, at a bounded rate: only while the page is seen, later if it takes long or fails.

import { duration } from "./format.js";

const WAITS_MS = [1_000, 2_000, 4_000, 8_000, 15_000];
const REST_FACTOR = 3;

let failures = 0;

// Tell that nobody answers, or that somebody does again.
function told(error) {
  const place = document.getElementById("away");
  if (!error) {
    failures = 0;
    place.hidden = true;
    return;
  }
  failures += 1;
  const text = error.code === "away" ? "The server does not answer." : error.message;
  place.textContent = `${text} Trying again every ${duration(waitMs(failures, error))}; what you see is older.`;
  place.hidden = false;
}

const waitMs = (tries, error) => Math.max(WAITS_MS[Math.min(tries, WAITS_MS.length) - 1], error.waitMs ?? 0);

export class Poll {
  // `look` is called with a signal, then `periodMs` after it was done, and so on. What it raises and is
  // no absence of the server goes to `failed`, and ends this.
  constructor(look, periodMs, failed) {
    this.look = look;
    this.periodMs = periodMs;
    this.failed = failed;
    this.ended = new AbortController();
    this.tries = 0;
    this.isDue = false;
    this.seen = () => {
      if (!document.hidden && this.isDue) this.now();
    };
    document.addEventListener("visibilitychange", this.seen);
    this.now();
  }

  // Look now, or as soon as the look under way is done.
  now() {
    if (this.isLooking) {
      this.isAgain = true;
    } else if (!this.ended.signal.aborted) {
      clearTimeout(this.timer);
      this.run();
    }
  }

  // Look now if the page is seen, else when it is.
  soon() {
    this.isDue = true;
    if (!document.hidden) this.now();
  }

  async run() {
    this.isLooking = true;
    this.isDue = this.isAgain = false;
    const began = performance.now();
    let wait = this.periodMs;
    try {
      await this.look(this.ended.signal);
      if (this.ended.signal.aborted) return;
      this.tries = 0;
      told(null);
      wait = Math.max(wait, REST_FACTOR * (performance.now() - began));
    } catch (error) {
      if (this.ended.signal.aborted) return;
      const isLater = error.isAway || error.status === 429;
      if (!isLater) {
        this.stop();
        this.failed(error);
        return;
      }
      this.tries += 1;
      told(error);
      wait = waitMs(this.tries, error);
    } finally {
      this.isLooking = false;
    }
    if (this.isAgain && this.tries === 0) wait = 0;
    this.timer = setTimeout(() => this.soon(), wait);
  }

  stop() {
    this.ended.abort();
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.seen);
  }
}
