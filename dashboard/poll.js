// Asking again and again, at a bounded rate: only while the page is seen, later if it takes long or fails.

import { duration } from "./format.js";

const WAITS_MS = [1_000, 2_000, 4_000, 8_000, 15_000];
const REST_FACTOR = 3;

const failing = new Map(); // which of them hear nothing, and how often they have tried

// Tell that nobody answers one of them, or that somebody does again.
function tell(poll, error) {
  if (error) failing.set(poll, [poll.tries, error]);
  else failing.delete(poll);
  const place = document.getElementById("away");
  const [worst] = [...failing.values()].sort(([one], [other]) => other - one);
  place.hidden = worst === undefined;
  if (worst === undefined) return;
  const [tries, why] = worst;
  const text = why.code === "away" ? "The server does not answer." : why.message;
  place.textContent = `${text} Trying again every ${duration(waitMs(tries, why))}; what you see is older.`;
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
      tell(this, null);
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
      tell(this, error);
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
    tell(this, null);
    document.removeEventListener("visibilitychange", this.seen);
  }
}
