/** Finding an event in a timeline, by its position in the stream or by its id: links of results and evidence name one. */

import type { Row, Timeline } from "./timeline";

/** How much later than its id an event may be stored, in milliseconds. */
const LATE = 60_000;

/** The row with the event, or of the approval with this name; without such a row that before its position; -1 if it is not among them. */
export function placeOf(rows: readonly Row[], wanted: string): number {
  const sequence = sequenceOf(wanted);
  const group = `approval ${wanted}`;
  const exact = rows.findIndex((row) => row.key === group || row.refs.some((ref) => (sequence > 0 ? ref.sequence === sequence : ref.id === wanted)));
  return exact >= 0 || sequence === 0 ? exact : rows.findLastIndex((row) => row.base <= sequence);
}

/** Whether the event may be among earlier ones that are not loaded. */
export function isEarlier(timeline: Timeline, wanted: string): boolean {
  const sequence = sequenceOf(wanted);
  if (sequence > 0) return timeline.first > sequence;
  const at = createdAt(wanted);
  const first = timeline.rows[0];
  return placeOf(timeline.rows, wanted) < 0 && (first === undefined || at === null || first.at > at - LATE);
}

function sequenceOf(wanted: string): number {
  return /^[0-9]{1,15}$/.test(wanted) ? Number(wanted) : 0;
}

/** The time in an id (UUIDv7), in milliseconds; null for any other. */
function createdAt(id: string): number | null {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-7/.test(id) ? Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16) : null;
}
