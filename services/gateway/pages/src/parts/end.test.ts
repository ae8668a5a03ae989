import { expect, it } from "vitest";
import { followsEnd } from "./end";

const END = { top: 1000, rows: 1500, window: 500 };

it("follows while rows are added and the window becomes smaller before it is scrolled", () => {
  expect(followsEnd(true, END, { ...END, rows: 2300 })).toBe(true);
  expect(followsEnd(true, END, { ...END, window: 420 })).toBe(true);
});

it("follows when the browser scrolls up because there is less to scroll, and rows are added then", () => {
  expect(followsEnd(true, END, { top: 900, rows: 1600, window: 600 })).toBe(true);
  expect(followsEnd(true, END, { top: 800, rows: 1300, window: 500 })).toBe(true);
});

it("stops when the reader scrolls up, also while rows are added", () => {
  expect(followsEnd(true, END, { ...END, top: 970 })).toBe(false);
  expect(followsEnd(true, END, { top: 995, rows: 1530, window: 500 })).toBe(false);
  expect(followsEnd(true, END, { top: 850, rows: 1600, window: 600 })).toBe(false);
});

it("follows again only when the reader is at the end", () => {
  const up = { ...END, top: 400 };
  expect(followsEnd(false, up, { ...END, top: 900 })).toBe(false);
  expect(followsEnd(false, up, { ...END, top: 980 })).toBe(true);
});
