import { expect, it } from "vitest";
import { addressOf, difference, partsOf } from "./results";

it("marks what matches, by characters, and ignores positions outside of the text", () => {
  expect(partsOf("a 🐑 bleat", [{ start: 4, end: 9 }, { start: 2, end: 3 }, { start: 8, end: 99 }])).toEqual([
    { text: "a ", hit: false }, { text: "🐑", hit: true }, { text: " ", hit: false }, { text: "bleat", hit: true },
  ]);
  expect(partsOf("x\u202ey", [])).toEqual([{ text: "x\ufffdy", hit: false }]);
});

it("links a hit into the timeline of its sandbox", () => {
  expect(addressOf({ entity: "sbx-1", stream_sequence: 7 })).toBe("/sandboxes/sbx-1?at=7");
  expect(addressOf({ entity: "task-1", stream_sequence: 7 })).toBe("/tasks/task-1");
});

it("states a difference with its share", () => {
  expect([difference(4, 6, String), difference(6, 3, String), difference(0, 2, String), difference(2, 2, String)]).toEqual(["+2, +50 %", "−3, −50 %", "+2", ""]);
});
