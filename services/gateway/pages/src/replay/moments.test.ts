import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { describe, expect, it } from "vitest";
import type { Envelope } from "../api/live";
import type { StoredEvent } from "../session/events";
import { filesOf } from "../session/files";
import { IDLE, Recording } from "./moments";

const ROOT = new URL("../../../../../", import.meta.url);

function recorded(name: string): StoredEvent[] {
  const text = gunzipSync(readFileSync(new URL(`tests/recordings/${name}.jsonl.gz`, ROOT))).toString();
  return text.trim().split("\n").map((line, index) => ({ stream_sequence: index + 1, envelope: JSON.parse(line) as Envelope }));
}

function whole(events: StoredEvent[]): Recording {
  const recording = new Recording();
  for (let start = 0; start < events.length; start += 97) recording.add(events.slice(start, start + 97));
  return recording;
}

describe("a replay", () => {
  const events = recorded("long-test-driven");
  const recording = whole(events);

  it("has at each moment the sums of the events up to it", () => {
    for (const index of [-1, 0, 1, 499, 500, 501, 1234, events.length - 1]) {
      const before = events.slice(0, index + 1).map((event) => event.envelope);
      const sums = recording.sumsAt(index);
      const of = (type: string) => before.filter((one) => one.type === type);
      expect(sums.calls).toBe(of("agent.tool_use").length);
      expect(sums.edits).toBe(of("agent.file_edited").length);
      expect(sums.costMicro).toBe(of("agent.usage").reduce((sum, one) => sum + Number(one.data["cost_micro_usd"] ?? 0), 0));
      expect(sums.turn).toBe(of("agent.turn_started").at(-1)?.data["turn"] ?? 0);
    }
  });

  it("finds the moment of a time, and never goes back", () => {
    const { moments } = recording;
    expect(moments.every((one, index) => index === 0 || (one.played >= moments[index - 1]!.played && one.played - moments[index - 1]!.played <= IDLE))).toBe(true);
    expect(recording.indexAt(-1)).toBe(-1);
    expect(recording.indexAt(recording.duration)).toBe(moments.length - 1);
    const later = moments.findIndex((one, index) => index > 600 && one.played > moments[index - 1]!.played);
    expect(recording.indexAt(moments[later]!.played - 0.5)).toBe(later - 1);
  });

  it("jumps to edits and errors in both directions, and has the files of that moment", () => {
    const edits = new Set(["edit"] as const);
    const first = recording.mark(-1, edits)!;
    expect(events[first.index]!.envelope.type).toBe("agent.file_edited");
    const second = recording.mark(first.index, edits)!;
    expect(second.index).toBeGreaterThan(first.index);
    expect(recording.mark(second.index, edits, true)).toEqual(first);
    expect(recording.mark(first.index, edits, true)).toBeNull();
    expect(recording.mark(-1, new Set(["error"] as const))).not.toBeNull();
    expect(filesOf(recording.edits, recording.moments[first.index]!.sequence)).toHaveLength(1);
    expect(filesOf(recording.edits, recording.moments[first.index - 1]!.sequence)).toHaveLength(0);
  });
});

it("counts the same events as errors as statistics, and failed calls and sandboxes", () => {
  const event = (type: string, data: Record<string, unknown> = {}) => ({ stream_sequence: 1, envelope: { id: "", type, source: "", time: "", data } });
  const marked = (found: StoredEvent) => whole([found]).marks[0]?.kind;
  const errors = ["agent.error", "agent.stream_error", "agent.iteration_failed", "agent.failed", "sandbox.failed"];
  expect(errors.map((type) => marked(event(type)))).toEqual(errors.map(() => "error"));
  expect(["agent.completed", "sandbox.terminated"].map((type) => marked(event(type)))).toEqual(["end", "end"]);
  const results = [{ is_error: true }, { is_error: false }, { outcome: "timed_out" }, { outcome: "denied", is_error: true }];
  expect(results.map((data) => marked(event("agent.tool_result", data)))).toEqual(["error", undefined, "error", undefined]);
  expect(whole([...errors.map((type) => event(type)), event("agent.completed")]).sumsAt(errors.length).errors).toBe(errors.length);
});
