/** Lines of budgets: their amounts as text, and their order. */

import type { BudgetLine } from "../api/schema";
import { count, duration, money } from "../parts/format";

export const KINDS: Record<BudgetLine["budget"], string> = { cost: "cost", tokens: "tokens", turns: "turns", wall_time: "time" };
export const WINDOWS: Record<string, string> = { total: "in all", day: "in 24 hours", month: "in 30 days" };

/** An amount in the unit of its budget: micro-dollars, tokens, turns, or seconds. */
export function amount(budget: BudgetLine["budget"], value: number): string {
  if (budget === "cost") return money(value);
  return budget === "wall_time" ? duration(value) : count(value);
}

export type LineState = "exceeded" | "warned" | "within";

export function stateOf(line: BudgetLine): LineState {
  return line.exceeded_at ? "exceeded" : line.warned_at ? "warned" : "within";
}

/** Those that are exceeded first, then by their share. */
export function ordered(lines: readonly BudgetLine[]): BudgetLine[] {
  const rank = { exceeded: 0, warned: 1, within: 2 };
  return [...lines].sort((a, b) => rank[stateOf(a)] - rank[stateOf(b)] || (b.share ?? -1) - (a.share ?? -1));
}
