import { readdirSync, readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import type { Envelope } from "../api/live";
import { pieceOf, type StoredEvent } from "./events";
import { chosen, type Row, Timeline } from "./timeline";

const ROOT = new URL("../../../../../", import.meta.url);

function recording(name: string): StoredEvent[] {
  const text = gunzipSync(readFileSync(new URL(`tests/recordings/${name}.jsonl.gz`, ROOT))).toString();
  const lines = text.trim().split("\n");
  return lines.map((line, index) => ({ stream_sequence: index * 3 + 1, envelope: JSON.parse(line) as Envelope }));
}

function shape(rows: readonly Row[]): unknown[] {
  return rows.map(({ revision: _revision, ...row }) => row);
}

function whole(events: StoredEvent[]): Timeline {
  const timeline = new Timeline();
  timeline.append(events);
  return timeline;
}

describe("the timeline of a session", () => {
  it("is the same whatever pages its events arrive in, and in which direction", () => {
    for (const name of ["long-frontend", "healthy-parallel-subagents", "long-feature-openhands"]) {
      const events = recording(name);
      const wanted = whole(events);
      for (const size of [1, 7, 50]) {
        const half = Math.floor(events.length / 2);
        const timeline = new Timeline();
        for (let start = half; start < events.length; start += size) timeline.append(events.slice(start, start + size));
        for (let end = half; end > 0; end -= size) timeline.prepend(events.slice(Math.max(0, end - size), end));
        expect(shape(timeline.rows)).toEqual(shape(wanted.rows));
        expect(timeline.totals).toEqual(wanted.totals);
        timeline.append(events);
        timeline.prepend(events);
        expect(shape(timeline.rows)).toEqual(shape(wanted.rows));
      }
    }
  });

  it("groups each call with its result, in the order in which they began", () => {
    const timeline = whole(recording("long-refactoring"));
    const calls = timeline.rows.filter((row) => row.kind === "call");
    expect(calls.length).toBeGreaterThan(50);
    expect(calls.every((row) => row.state !== "running" && row.refs.length >= 2)).toBe(true);
    expect(timeline.rows.filter((row) => row.files.length > 0).length).toBeGreaterThan(10);
    const keys = timeline.rows.map((row) => row.key);
    expect(new Set(keys).size).toBe(keys.length);
    expect(timeline.rows.map((row) => row.base)).toEqual(timeline.rows.map((row) => row.base).sort((a, b) => a - b));
  });

  it("shows output in a row as a terminal would", () => {
    const output = "\u001b[32mok\u001b[0m one\n10 %\r100 %\n";
    const piece = pieceOf({ stream_sequence: 1, envelope: { id: "1", type: "agent.completed", source: "/s", time: "2026-11-29T10:00:00Z", data: { final_output: output } } });
    expect(piece?.text).toBe("ok one\n100 %\n");
  });

  it("has a row with a title for the example of every type of event that is shown", () => {
    const folder = new URL("libs/sandherd/contracts/golden/v1/events/", ROOT);
    for (const file of readdirSync(folder)) {
      const envelope = JSON.parse(readFileSync(new URL(file, folder), "utf8")) as Envelope;
      const piece = pieceOf({ stream_sequence: 1, envelope });
      if (piece) expect(piece.title, file).not.toBe("");
      expect(JSON.stringify(piece), file).not.toContain("[object");
    }
  });

  it("takes any data: what a sandbox writes has any form", () => {
    const folder = new URL("libs/sandherd/contracts/golden/v1/events/", ROOT);
    for (const file of readdirSync(folder)) {
      const envelope = JSON.parse(readFileSync(new URL(file, folder), "utf8")) as Envelope;
      for (const value of [null, 7, "x\u202e\u001b[2J", [1], { a: 1 }]) {
        const data = Object.fromEntries(Object.keys(envelope.data).map((key) => [key, value]));
        for (const broken of [data, value]) {
          const timeline = whole([{ stream_sequence: 1, envelope: { ...envelope, data: broken as Record<string, unknown> } }]);
          expect(timeline.rows.every((row) => !/[\u202e\u001b]/.test(row.title + row.text))).toBe(true);
        }
      }
    }
  });

  it("shows how a message was delivered, and how an approval was decided", () => {
    const at = (sequence: number, type: string, data: Record<string, unknown>): StoredEvent => ({
      stream_sequence: sequence,
      envelope: { id: `${sequence}`, type, source: "s", time: "2026-11-20T12:00:00Z", data },
    });
    const timeline = whole([
      at(1, "message.queued", { message_id: "m", message_type: "user_message", sender_id: "ada" }),
      at(2, "agent.approval_requested", { approval_id: "a", tool: "Bash", input: { command: "rm x" } }),
      at(3, "message.delivered", { message_id: "m" }),
      at(4, "agent.message_injected", { message_id: "m", message_type: "user_message", content: "stop" }),
      at(5, "approval.denied", { approval_id: "a", reason: "no" }),
    ]);
    expect(timeline.rows.map(({ kind, title, text, state }) => [kind, title, text, state])).toEqual([
      ["input", "message from ada", "stop", "received"],
      ["approval", "Bash rm x", "", "denied"],
    ]);
  });

  it("is reduced to a kind of rows, or to those with a text", () => {
    const { rows } = whole(recording("long-frontend"));
    expect(chosen(rows, "all", "")).toBe(rows);
    expect(chosen(rows, "errors", "").every((row) => row.tone === "bad")).toBe(true);
    expect(chosen(rows, "files", "").length).toBeGreaterThan(3);
    expect(chosen(rows, "all", "NPM").length).toBeGreaterThan(0);
    expect(chosen(rows, "all", "NPM").length).toBeLessThan(rows.length);
  });
});
