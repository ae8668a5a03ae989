/** The rows of a session, from its events: in order, each once, whatever the order in which pages of them arrive. */

import type { Tone } from "../parts/states";
import { type FileChange, type Kind, type Piece, pieceOf, type StoredEvent } from "./events";

/** Where an event can be read: its source and its number there. */
export interface Ref {
  id: string;
  sequence: number;
  type: string;
  source: string;
  number: number;
}

export interface Row {
  key: string;
  kind: Kind;
  title: string;
  text: string;
  tone: Tone;
  state: string;
  /** When it began, and when its last event was, in milliseconds. */
  at: number;
  until: number;
  duration: number | null;
  turn: number;
  nested: boolean;
  files: FileChange[];
  refs: Ref[];
  /** It changes whenever the row does: rows are not observed. */
  revision: number;
  /** The sequence of the event that made it, and of the one that its state is from. */
  base: number;
  last: number;
}

/** What is summed up from the events that are loaded. */
export interface Totals {
  events: number;
  costMicro: number;
  tokens: number;
  heartbeatAt: number;
}

/** The rows of the events between two positions; it grows at both ends. Not observed: see `revision`. */
export class Timeline {
  rows: Row[] = [];
  /** It changes with every row. */
  revision = 0;
  first = Number.POSITIVE_INFINITY;
  last = 0;
  readonly totals: Totals = { events: 0, costMicro: 0, tokens: 0, heartbeatAt: 0 };
  #groups = new Map<string, Row>();

  /** Add newer events, oldest first; those that are known have no effect. The number of new rows is returned. */
  append(events: readonly StoredEvent[]): number {
    const before = this.rows.length;
    for (const event of events) {
      if (event.stream_sequence <= this.last) continue;
      this.last = event.stream_sequence;
      this.first = Math.min(this.first, event.stream_sequence);
      const row = this.#fold(event);
      if (row) this.rows.push(row);
    }
    return this.rows.length - before;
  }

  /** Add older events, oldest first. A row whose first event is among them moves to where that is. */
  prepend(events: readonly StoredEvent[]): void {
    const older: Row[] = [];
    let moved = false;
    const end = this.first;
    for (const event of events) {
      if (event.stream_sequence >= end) continue;
      this.first = Math.min(this.first, event.stream_sequence);
      this.last = Math.max(this.last, event.stream_sequence);
      const row = this.#fold(event, end);
      if (row) {
        older.push(row);
        moved ||= row.last >= end;
      }
    }
    const rest = moved ? this.rows.filter((row) => row.base >= end) : this.rows;
    this.rows = older.concat(rest);
  }

  /** The row to place here, if the event makes one or is the first of one that was placed behind `end`. */
  #fold(event: StoredEvent, end = 0): Row | null {
    this.#sum(event);
    const piece = pieceOf(event);
    if (!piece) return null;
    this.revision += 1;
    const known = piece.group ? this.#groups.get(piece.group) : undefined;
    if (!known) return this.#made(event, piece);
    const placed = known.base;
    this.#merge(known, event, piece);
    return placed >= end && end > 0 && known.base < end ? known : null;
  }

  #made(event: StoredEvent, piece: Piece): Row {
    const { envelope, stream_sequence: sequence } = event;
    const at = Date.parse(envelope.time) || 0;
    const row: Row = {
      key: piece.group || `${sequence}`,
      kind: piece.kind,
      title: piece.title,
      text: piece.text,
      tone: piece.tone,
      state: piece.state,
      at,
      until: at,
      duration: piece.duration,
      turn: turnOf(event),
      nested: piece.nested,
      files: piece.file ? [piece.file] : [],
      refs: [refOf(event)],
      revision: this.revision,
      base: sequence,
      last: piece.state ? sequence : 0,
    };
    if (piece.group) this.#groups.set(piece.group, row);
    return row;
  }

  /** The earliest event states what a row is, the latest one its state. */
  #merge(row: Row, event: StoredEvent, piece: Piece): void {
    const sequence = event.stream_sequence;
    const at = Date.parse(event.envelope.time) || 0;
    row.revision = this.revision;
    insert(row.refs, refOf(event));
    if (piece.file) insert(row.files, piece.file);
    if (piece.text && (!row.text || sequence < row.base)) row.text = piece.text;
    row.duration ??= piece.duration;
    if (sequence < row.base) {
      Object.assign(row, { base: sequence, kind: piece.kind, title: piece.title, at, turn: turnOf(event), nested: piece.nested });
    }
    row.until = Math.max(row.until, at);
    if (piece.state && sequence > row.last) Object.assign(row, { last: sequence, state: piece.state, tone: piece.tone });
  }

  #sum({ envelope }: StoredEvent): void {
    this.totals.events += 1;
    const data = envelope.data ?? {};
    if (envelope.type === "agent.usage") {
      this.totals.costMicro += amount(data["cost_micro_usd"]);
      this.totals.tokens += amount(data["input_tokens"]) + amount(data["output_tokens"]);
    } else if (envelope.type === "agent.heartbeat") {
      this.totals.heartbeatAt = Math.max(this.totals.heartbeatAt, Date.parse(envelope.time) || 0);
    }
  }
}

function amount(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

function turnOf({ envelope }: StoredEvent): number {
  return amount(envelope.data?.["turn"]);
}

export function refOf({ envelope, stream_sequence: sequence }: StoredEvent): Ref {
  return { id: envelope.id, sequence, type: envelope.type, source: envelope.source, number: amount(envelope["sequence"]) };
}

/** Insert by sequence; what is known is not inserted again. */
function insert<Item extends { sequence: number }>(items: Item[], item: Item): void {
  let index = items.length;
  while (index > 0 && items[index - 1]!.sequence > item.sequence) index -= 1;
  if (items[index - 1]?.sequence !== item.sequence) items.splice(index, 0, item);
}

/** What the timeline may be reduced to. */
export const FILTERS = {
  all: null,
  messages: new Set<Kind>(["turn", "text", "input", "approval"]),
  calls: new Set<Kind>(["turn", "call", "file"]),
  files: new Set<Kind>(["file"]),
  findings: new Set<Kind>(["finding", "steering", "approval"]),
  errors: new Set<Kind>(["error"]),
} as const;
export type Filter = keyof typeof FILTERS;

/** The rows of a filter that contain a text, in any case of letters. */
export function chosen(rows: readonly Row[], filter: Filter, wanted: string): readonly Row[] {
  const kinds: ReadonlySet<Kind> | null = FILTERS[filter];
  const needle = wanted.trim().toLowerCase();
  if (!kinds && !needle) return rows;
  return rows.filter((row) => {
    if (kinds && !kinds.has(row.kind) && !(filter === "files" && row.files.length) && !(filter === "errors" && row.tone === "bad")) return false;
    return !needle || row.title.toLowerCase().includes(needle) || row.text.toLowerCase().includes(needle);
  });
}
