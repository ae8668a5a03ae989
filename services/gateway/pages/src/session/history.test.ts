import { describe, expect, it } from "vitest";
import type { StoredEvent } from "./events";
import { History, type Source } from "./history";

function event(sequence: number): StoredEvent {
  const data = { content: `text ${sequence}` };
  return { stream_sequence: sequence, envelope: { id: `${sequence}`, type: "agent.message", source: "s", time: "2026-11-20T12:00:00Z", sequence, data } };
}

/** A herd with events 1 to `published`, of which the first `stored` can be listed. */
class Herd implements Source {
  published = 0;
  stored = 0;
  /** Events that are stored later than those behind them. */
  holes = new Set<number>();
  /** The first event that the stream has. */
  first = 1;
  history = new History(this, () => undefined);
  requests = 0;
  #position = Number.POSITIVE_INFINITY;

  async newest(cursor: string | null, limit: number) {
    this.requests += 1;
    const end = cursor === null ? this.stored : Number(cursor);
    const events: StoredEvent[] = [];
    for (let sequence = end; sequence > 0 && events.length < limit; sequence -= 1) if (!this.holes.has(sequence)) events.push(event(sequence));
    const stored_through = Math.min(this.stored, ...[...this.holes].map((hole) => hole - 1));
    const next_cursor = end > limit ? `${events.at(-1)!.stream_sequence - 1}` : null;
    return { events, next_cursor, ...(cursor === null && { stored_through }) };
  }

  async one() {
    return null;
  }

  follow(after: string): void {
    const wanted = Number(after.split("-")[1]);
    this.open(wanted + 1 < this.first ? this.published : wanted);
  }

  open(position: number): void {
    this.#position = position;
    void this.history.begin(`7-${position}`);
    this.flush();
  }

  publish(count: number): void {
    this.published += count;
    this.flush();
  }

  flush(): void {
    while (this.#position < this.published) this.history.take(event(++this.#position));
  }
}

const settled = () => new Promise((resolve) => setTimeout(resolve));
const sequences = (herd: Herd) => herd.history.timeline.rows.map((row) => row.base);
const upTo = (last: number, first = 1) => Array.from({ length: last - first + 1 }, (_, index) => index + first);

describe("the history of a session", () => {
  it("misses no event that is published but not stored when the page opens", async () => {
    const herd = new Herd();
    herd.published = 300;
    herd.stored = 290;
    herd.open(300);
    herd.publish(3);
    await settled();
    herd.publish(2);
    expect(sequences(herd)).toEqual(upTo(305, 91));
    while (await herd.history.earlier());
    expect(sequences(herd)).toEqual(upTo(305));
    expect(herd.history.more).toBe(false);
  });

  it("misses no event that is stored later than those behind it", async () => {
    for (const stored of [10, 9]) {
      const herd = new Herd();
      herd.published = 10;
      herd.stored = stored;
      herd.holes = new Set([6, 8]);
      herd.open(10);
      herd.publish(1);
      await settled();
      herd.publish(1);
      expect(sequences(herd)).toEqual(upTo(12));
    }
  });

  it("misses no event that was not stored when it read after a loss", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 5;
    herd.open(5);
    await settled();
    herd.published = herd.stored = 12;
    herd.holes = new Set([8]);
    herd.open(10);
    await settled();
    herd.publish(1);
    expect(sequences(herd)).toEqual(upTo(13));
  });

  it("shows what is stored when the stream has lost what is not", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 10;
    herd.holes = new Set([6]);
    herd.first = 9;
    herd.open(10);
    await settled();
    await settled();
    herd.publish(1);
    expect(sequences(herd)).toEqual([1, 2, 3, 4, 5, 7, 8, 9, 10, 11]);
  });

  it("reads everything again after an error, also what is before the live events", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 500;
    const newest = herd.newest.bind(herd);
    herd.newest = () => Promise.reject(new Error("unavailable"));
    herd.open(500);
    await settled();
    herd.publish(2);
    expect(sequences(herd)).toEqual([501, 502]);
    herd.newest = newest;
    herd.open(502);
    await settled();
    expect(sequences(herd)).toEqual(upTo(502, 301));
    while (await herd.history.earlier());
    expect(sequences(herd)).toEqual(upTo(502));
  });

  it("reads what it missed when a first attempt has failed", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 5;
    herd.open(5);
    await settled();
    const newest = herd.newest.bind(herd);
    herd.newest = () => Promise.reject(new Error("unavailable"));
    herd.published = herd.stored = 12;
    herd.open(12);
    await settled();
    herd.publish(2);
    expect(herd.history.torn).toBe(true);
    herd.newest = newest;
    expect(await herd.history.earlier()).toBe(false);
    expect(String(herd.history.error)).toContain("unavailable");
    herd.open(14);
    await settled();
    expect(sequences(herd)).toEqual(upTo(14));
    expect(herd.history.torn).toBe(false);
  });

  it("misses no event when the stream begins while what is stored is being read without one", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 5;
    const newest = herd.newest.bind(herd);
    const replies: (() => void)[] = [];
    herd.newest = async (cursor, limit) => {
      const page = await newest(cursor, limit);
      return new Promise((resolve) => replies.push(() => resolve(page)));
    };
    void herd.history.begin(""); // a tab without a place reads what is stored
    await settled();
    herd.published = herd.stored = 10;
    herd.open(10);
    await settled();
    replies[0]!();
    await settled();
    herd.publish(1);
    replies[1]!();
    await settled();
    expect(sequences(herd)).toEqual(upTo(11));
  });

  it("reads what it missed when the stream has lost it", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 50;
    herd.open(50);
    await settled();
    herd.published = herd.stored = 4000;
    herd.first = 3990;
    herd.open(4000);
    await settled();
    herd.publish(1);
    expect(sequences(herd)).toEqual(upTo(4001));
  });

  it("begins anew behind a gap that is too large, and reads the rest on demand", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 50;
    herd.open(50);
    await settled();
    herd.published = herd.stored = 60_000;
    herd.first = 60_000;
    herd.open(60_000);
    await settled();
    expect(herd.history.timeline.last).toBe(60_000);
    expect(herd.history.timeline.first).toBeGreaterThan(40_000);
    while (await herd.history.earlier());
    expect(sequences(herd)).toEqual(upTo(60_000));
  });

  it("reads a session whose events are no longer in the stream once", async () => {
    const herd = new Herd();
    herd.published = 1000;
    herd.first = 900;
    herd.stored = 500;
    herd.open(1000);
    await settled();
    await settled();
    expect(herd.requests).toBeLessThanOrEqual(3);
    expect(herd.history.timeline.last).toBe(500);
    herd.publish(1);
    expect(herd.history.timeline.last).toBe(1001);
  });

  it("keeps what it has when a request fails, and continues", async () => {
    const herd = new Herd();
    herd.published = herd.stored = 500;
    herd.open(500);
    await settled();
    const newest = herd.newest.bind(herd);
    herd.newest = () => Promise.reject(new Error("unavailable"));
    expect(await herd.history.earlier()).toBe(false);
    expect(String(herd.history.error)).toContain("unavailable");
    herd.newest = newest;
    expect(await herd.history.earlier()).toBe(true);
    expect(herd.history.error).toBeNull();
    expect(sequences(herd)).toEqual(upTo(500));
  });
});
