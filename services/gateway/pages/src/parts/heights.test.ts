import { expect, it } from "vitest";
import { Heights } from "./heights";

it("has the same sums whether rows are set or added at the end", () => {
  const heights = Array.from({ length: 1100 }, (_, index) => 20 + (index % 7));
  const [whole, grown] = [new Heights(), new Heights()];
  whole.set([...heights]);
  grown.set(heights.slice(0, 500));
  grown.append(heights.slice(500));
  expect([grown.length, grown.total]).toEqual([1100, whole.total]);
  for (const index of [0, 499, 500, 511, 512, 1099]) expect(grown.start(index)).toBe(whole.start(index));
});

it("finds rows as the plain sums do, also after changes", () => {
  const heights = Array.from({ length: 3000 }, (_, index) => 20 + ((index * 7919) % 31));
  const found = new Heights();
  found.set([...heights]);
  for (const index of [0, 511, 512, 1700, 2999]) {
    heights[index]! += 13;
    expect(found.change(index, heights[index]!)).toBe(13);
  }
  const starts = [0];
  for (const height of heights) starts.push(starts.at(-1)! + height);
  expect(found.total).toBe(starts.at(-1));
  for (const index of [0, 1, 511, 512, 513, 1024, 2998, 2999]) {
    expect(found.start(index)).toBe(starts[index]);
    expect(found.at(starts[index]!)).toEqual({ index, start: starts[index] });
    expect(found.at(starts[index]! + heights[index]! - 1).index).toBe(index);
  }
  expect(found.at(found.total + 500).index).toBe(2999);
});
