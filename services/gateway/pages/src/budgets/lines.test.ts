import { expect, it } from "vitest";
import type { BudgetLine } from "../api/schema";
import { amount, ordered, stateOf } from "./lines";

it("shows each amount in its unit, and what is exceeded first", () => {
  expect([amount("cost", 2_500_000), amount("tokens", 12_345), amount("wall_time", 3700)]).toEqual(["$2.50", "12,345", "1 h 1 min"]);
  const lines = [{ share: 0.2 }, { share: null }, { share: 0.9, warned_at: "t" }, { share: 1.1, exceeded_at: "t" }] as BudgetLine[];
  expect(ordered(lines).map(stateOf)).toEqual(["exceeded", "warned", "within", "within"]);
});
