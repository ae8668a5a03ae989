import { describe, expect, it } from "vitest";
import { StoredList } from "./stored";

const settled = () => new Promise((resolve) => setTimeout(resolve));

/** A list that is complete up to the next of these positions each time it is read. */
function list(...positions: number[]) {
  const waits: number[] = [];
  const read = async () => positions.shift() ?? Number.POSITIVE_INFINITY;
  const stored = new StoredList(read, async (milliseconds) => void waits.push(milliseconds));
  return { stored, waits, left: () => positions.length };
}

describe("a list of what is stored", () => {
  it("is read again until it has everything up to the live event", async () => {
    const { stored, waits, left } = list(3, 4, 5, 6);
    stored.to(5);
    await settled();
    expect(left()).toBe(1);
    expect(waits).toEqual([200, 400]);
  });

  it("is read once more for what arrives while it is read, and then not again", async () => {
    const { stored, waits, left } = list(5, 5, 7, 8);
    stored.to(4);
    stored.to(5);
    stored.to(5);
    await settled();
    expect(left()).toBe(2);
    expect(waits).toEqual([]);
    stored.to(6);
    await settled();
    expect(left()).toBe(1);
  });

  it("is not read after its page was left", async () => {
    const { stored, left } = list(1, 2, 3);
    stored.to(9);
    stored.stop();
    await settled();
    expect(left()).toBe(2);
  });
});
