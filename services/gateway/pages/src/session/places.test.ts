import { expect, it } from "vitest";
import type { StoredEvent } from "./events";
import { isEarlier, placeOf } from "./places";
import { Timeline } from "./timeline";

const id = (sequence: number) => `019a0000-${(sequence * 100).toString(16).padStart(4, "0")}-7000-8000-000000000000`;
const start = Number.parseInt("019a0000" + "0000", 16);
const event = (sequence: number, type = "agent.message"): StoredEvent => ({
  stream_sequence: sequence,
  envelope: { id: id(sequence), type, source: "/s", sequence, time: new Date(start + sequence * 100).toISOString(), data: { content: `${sequence}` } },
});

it("finds an event by its position and by its id, and knows whether it is earlier than what is loaded", () => {
  const timeline = new Timeline();
  timeline.append([10, 12, 14].map((sequence) => event(sequence)));
  timeline.append([event(15, "agent.heartbeat")]);
  expect(["12", "13", "15", id(14)].map((wanted) => placeOf(timeline.rows, wanted))).toEqual([1, 1, 2, 2]);
  expect(["9", "10", "x", id(14)].map((wanted) => isEarlier(timeline, wanted))).toEqual([true, false, true, false]);
  const asked = event(16, "agent.approval_requested");
  timeline.append([{ ...asked, envelope: { ...asked.envelope, data: { approval_id: "appr-1", tool: "Bash" } } }]);
  expect([placeOf(timeline.rows, "appr-1"), isEarlier(timeline, "appr-1"), isEarlier(timeline, "appr-2")]).toEqual([3, false, true]);
  timeline.prepend([{ ...event(2), envelope: { ...event(2).envelope, time: new Date(start - 3_600_000).toISOString() } }]);
  expect(isEarlier(timeline, id(3))).toBe(false);
});
