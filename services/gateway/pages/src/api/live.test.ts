import { describe, expect, it } from "vitest";
import { address } from "./client";
import { FrameParser } from "./frames";
import { type Connection, delay, LiveStream, sequenceOf } from "./live";

const event = (id: string, type = "agent.message") => `event: ${type}\nid: ${id}\ndata: {"type":"${type}","data":{}}\n\n`;

describe("frames", () => {
  it("are the same however their text is cut", () => {
    const text = `retry: 1000\n\n: heartbeat\n\n${event("e-1", "ready")}data: a\r\ndata: b\r\n\r\n`;
    for (let cut = 0; cut <= text.length; cut++) {
      const parser = new FrameParser();
      const frames = [...parser.push(text.slice(0, cut)), ...parser.push(text.slice(cut))];
      expect(frames.map(({ event, id, data }) => [event, id, data.replace(/\{.*/, "…")])).toEqual([
        ["ready", "e-1", "…"],
        ["message", "e-1", "a\nb"],
      ]);
    }
  });
});

/** A gateway that responds with these texts, one at each connection. */
function stream(...texts: (string | number)[]) {
  const urls: string[] = [];
  const log: string[] = [];
  const states: Connection[] = [];
  return new Promise<{ urls: string[]; log: string[]; states: Connection[] }>((resolve) => {
    const found = new LiveStream(
      "/events/stream",
      {
        event: ({ sequence, type }) => log.push(`${type} ${sequence}`),
        ready: (position) => log.push(`ready ${position}`),
        resync: (position) => log.push(`resync ${position}`),
        state: (state) => {
          states.push(state);
          if (state === "signed-out" || state === "missing") resolve({ urls, log, states });
        },
      },
      "",
      async (url) => {
        urls.push(url);
        const next = texts.shift() ?? 401;
        if (typeof next === "number") {
          if (next === 0) throw new TypeError("network");
          return new Response(JSON.stringify({ detail: "no" }), { status: next });
        }
        return new Response(next);
      },
    );
    void found;
  });
}

describe("the live stream", () => {
  it("continues where the last connection ended, and ends with the session", async () => {
    const found = await stream(event("e-4", "ready") + event("e-7"), 0, 503, event("e-7", "ready") + event("f-2", "resync"));
    expect(found.urls).toEqual([
      address("/events/stream"),
      address("/events/stream", { after: "e-7" }),
      address("/events/stream", { after: "e-7" }),
      address("/events/stream", { after: "e-7" }),
      address("/events/stream", { after: "f-2" }),
    ]);
    expect(found.log).toEqual(["ready e-4", "agent.message 7", "ready e-7", "resync f-2"]);
    expect(found.states).toEqual(["live", "reconnecting", "live", "reconnecting", "signed-out"]);
  }, 60_000);

  it("ends if there is no such sandbox", async () => {
    const found = await stream(0, 404, event("e-1", "ready"));
    expect([found.urls.length, found.states]).toEqual([2, ["reconnecting", "missing"]]);
  });

  it("waits longer with each attempt, up to 15 s", () => {
    expect([0, 1, 4, 99].map((attempt) => delay(attempt, 1))).toEqual([500, 1000, 8000, 15_000]);
    expect(delay(99, 0)).toBe(7500);
    expect(sequenceOf("2026-1-17")).toBe(17);
  });
});
