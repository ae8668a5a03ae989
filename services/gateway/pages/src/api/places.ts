/**
 * A limit for the streams that a browser has open: over HTTP/1.1 it opens six connections to a host, for all its tabs
 * together, and a seventh request waits without end.
 *
 * The tabs share a number of places, each a lock of the browser. One without a place waits for it, and states that.
 */

import type { Stream } from "./shared";

/** Streams of sessions at the same time; the two other connections are for the project's stream and for requests. */
export const PLACES = 4;

type Locks = Pick<LockManager, "request">;

/** The browser's locks; null where streams need no limit, or it has no locks. */
function locksOfBrowser(): Locks | null {
  const [loaded] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
  // HTTP/2 and 3 have many streams in one connection.
  return /^h[23]/.test(loaded?.nextHopProtocol ?? "") ? null : (navigator.locks ?? null);
}

/** A stream that is open while it has one of the places. */
export class PlacedStream implements Stream {
  #closed = new AbortController();
  #ended: Promise<void>;
  #own: Stream | null = null;

  /** `open` is called when there is a place, and `waits` before that if there is none at first. */
  constructor(
    private open: () => Stream,
    private readonly waits: () => void,
    locks: Locks | null = locksOfBrowser(),
  ) {
    this.#ended = new Promise((resolve) => this.#closed.signal.addEventListener("abort", () => resolve()));
    if (locks) void this.#begin(locks);
    else this.#own = open();
  }

  close(): void {
    this.#closed.abort();
    this.#own?.close();
  }

  /** Open another stream in place of this one, now or when there is a place. */
  reopen(open: () => Stream): void {
    this.open = open;
    if (!this.#own || this.#closed.signal.aborted) return;
    this.#own.close();
    this.#own = open();
  }

  async #begin(locks: Locks): Promise<void> {
    for (let place = 0; place < PLACES; place += 1) if (await this.#take(locks, place, { ifAvailable: true })) return;
    if (this.#closed.signal.aborted) return;
    this.waits();
    const found = new AbortController();
    this.#closed.signal.addEventListener("abort", () => found.abort());
    for (let place = 0; place < PLACES; place += 1) {
      void this.#take(locks, place, { signal: found.signal }).then((taken) => taken && found.abort());
    }
  }

  /** Open the stream in a place, which it has until it is closed; whether it got the place. */
  #take(locks: Locks, place: number, options: LockOptions): Promise<boolean> {
    return new Promise((resolve) => {
      const enter = (lock: Lock | null) => {
        const free = lock !== null && this.#own === null && !this.#closed.signal.aborted;
        if (free) this.#own = this.open();
        resolve(free);
        return free ? this.#ended : undefined;
      };
      // A request that is aborted, because another place was free, is rejected.
      locks.request(`sandherd place ${place}`, options, enter).catch(() => resolve(false));
    });
  }
}
