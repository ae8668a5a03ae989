import { expect, it } from "vitest";
import { Replies } from "./replies";

it("takes no reply that a later one has overtaken, and each that is in order", () => {
  const replies = new Replies();
  const [first, second, third] = [replies.begin(), replies.begin(), replies.begin()];
  expect(first()).toBe(true);
  expect(third()).toBe(true);
  expect(second()).toBe(false);
  expect(replies.begin()()).toBe(true);
});
