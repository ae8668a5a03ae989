/** Results of the search over the history, and the sides of a comparison, as what is shown. */

import type { Reply } from "../api/client";
import { plain } from "../parts/format";

export type Hit = Reply<"search">["hits"][number];

export interface Part {
  text: string;
  hit: boolean;
}

/** A snippet in parts: those that match, and what is between them. Positions that make no sense are left out. */
export function partsOf(snippet: string, matches: readonly { start: number; end: number }[]): Part[] {
  const characters = [...snippet];
  const found: Part[] = [];
  let at = 0;
  const add = (until: number, hit: boolean) => {
    const text = plain(characters.slice(at, until).join(""));
    if (text) found.push({ text, hit });
    at = until;
  };
  for (const { start, end } of matches.toSorted((one, other) => one.start - other.start)) {
    if (start < at || end <= start || end > characters.length) continue;
    add(start, false);
    add(end, true);
  }
  add(characters.length, false);
  return found;
}

/** Where a hit is shown: in the timeline of its sandbox, or the page of its task. */
export function addressOf({ entity, stream_sequence }: Pick<Hit, "entity" | "stream_sequence">): string {
  if (entity.startsWith("task-")) return `/tasks/${encodeURIComponent(entity)}`;
  return `/sandboxes/${encodeURIComponent(entity)}?at=${stream_sequence}`;
}

/** How the second of two numbers differs from the first: empty where there is no difference. */
export function difference(first: number, second: number, format: (value: number) => string): string {
  if (first === second) return "";
  const share = first > 0 ? `, ${second > first ? "+" : "−"}${Math.round((Math.abs(second - first) / first) * 100)} %` : "";
  return `${second > first ? "+" : "−"}${format(Math.abs(second - first))}${share}`;
}
