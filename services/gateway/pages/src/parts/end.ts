/** Whether a list stays at its end while rows are added and its window changes. */

/** Where a list is scrolled to: its scroll position, and the heights of all rows and of its window, in pixels. */
export interface Place {
  top: number;
  rows: number;
  window: number;
}

/** At most so far from the end, the reader is at the end. */
const MARGIN = 24;

export const placeOf = (element: HTMLElement): Place => ({
  top: element.scrollTop,
  rows: element.scrollHeight,
  window: element.clientHeight,
});

export const isAtEnd = ({ top, rows, window }: Place): boolean => rows - top - window < MARGIN;

/**
 * Whether a list follows its end. A distance from the end is not sufficient for the opposite: rows that were added, or a
 * window that became smaller, move the end away before the list is scrolled to it. Only a reader scrolls up, further
 * than fewer rows or a larger window explain.
 */
export function followsEnd(followed: boolean, before: Place, now: Place): boolean {
  if (isAtEnd(now)) return true;
  const moved = Math.max(0, now.window - before.window) + Math.max(0, before.rows - now.rows);
  return followed && now.top >= before.top - (moved && moved + 1);
}
