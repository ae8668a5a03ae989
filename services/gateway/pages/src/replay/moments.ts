/** A recorded session as it was at any moment: checkpoints every so many events, and the events between them. */

import { ERRORS, FAILED_OUTCOMES, SANDBOX_STATES, TERMINAL } from "../api/event_facts";
import { pieceOf, type StoredEvent, text } from "../session/events";
import { type Edit, editsOf } from "../session/files";
import { refOf, type Ref } from "../session/timeline";

export type MarkKind = "finding" | "error" | "edit" | "approval" | "turn" | "end";

/** A moment to jump to. */
export interface Mark {
  index: number;
  kind: MarkKind;
  title: string;
}

/** One event, as far as a replay needs it. */
export interface Moment {
  sequence: number;
  /** In milliseconds. */
  at: number;
  /** The time of the replay, in milliseconds from its beginning: idle time is shortened. */
  played: number;
  title: string;
  kind: string;
  ref: Ref;
}

/** What is known at a moment. */
export interface Sums {
  costMicro: number;
  tokens: number;
  turn: number;
  calls: number;
  edits: number;
  errors: number;
}

const NONE: Sums = { costMicro: 0, tokens: 0, turn: 0, calls: 0, edits: 0, errors: 0 };
const CHECKPOINT = 500;
/** The longest pause that is replayed, in milliseconds; longer ones are shortened to it. */
export const IDLE = 3_000;

/** All moments of a session. Events are added in order, in pages, so that the first is shown before the last is read. */
export class Recording {
  readonly moments: Moment[] = [];
  readonly marks: Mark[] = [];
  readonly edits: Edit[] = [];
  #checkpoints: Sums[] = [];
  #changes: (Partial<Sums> | null)[] = [];
  #sums: Sums = { ...NONE };

  add(events: readonly StoredEvent[]): void {
    for (const event of events) this.#add(event);
    this.edits.push(...editsOf(events));
  }

  get duration(): number {
    return this.moments.at(-1)?.played ?? 0;
  }

  /** The last event at a time of the replay; -1 before the first. */
  indexAt(played: number): number {
    let low = 0;
    let high = this.moments.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.moments[middle]!.played <= played) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** What is known after an event: from the checkpoint before it on. */
  sumsAt(index: number): Sums {
    if (index < 0) return { ...NONE };
    const checkpoint = Math.floor(index / CHECKPOINT);
    const sums = { ...this.#checkpoints[checkpoint]! };
    for (let one = checkpoint * CHECKPOINT; one <= index; one += 1) apply(sums, this.#changes[one] ?? null);
    return sums;
  }

  /** The next mark of some kinds behind an event, or the last one before it; null if there is none. */
  mark(index: number, kinds: ReadonlySet<MarkKind>, backward = false): Mark | null {
    const found = this.marks.filter((one) => kinds.has(one.kind) && (backward ? one.index < index : one.index > index));
    return (backward ? found.at(-1) : found[0]) ?? null;
  }

  #add(event: StoredEvent): void {
    const { envelope } = event;
    const index = this.moments.length;
    if (index % CHECKPOINT === 0) this.#checkpoints.push({ ...this.#sums });
    const piece = pieceOf(event);
    const change = changeOf(event);
    this.#changes.push(change);
    apply(this.#sums, change);
    const at = Date.parse(envelope.time) || 0;
    const previous = this.moments.at(-1);
    const pause = previous ? Math.min(Math.max(0, at - previous.at), IDLE) : 0;
    // The end of a call is a moment, but no line: its beginning is one.
    const ends = piece?.kind === "call" && piece.state !== "running" && piece.tone !== "bad";
    const shown = piece && !ends ? piece.title || piece.text : "";
    this.moments.push({
      sequence: event.stream_sequence,
      at: Math.max(at, previous?.at ?? 0),
      played: (previous?.played ?? 0) + pause,
      title: piece?.kind === "text" ? text(piece.text, 300) : shown,
      kind: piece?.kind ?? "",
      ref: refOf(event),
    });
    const kind = markOf(event);
    if (kind) this.marks.push({ index, kind, title: shown });
  }
}

function apply(sums: Sums, change: Partial<Sums> | null): void {
  if (!change) return;
  for (const [name, value] of Object.entries(change) as [keyof Sums, number][]) {
    sums[name] = name === "turn" ? value : sums[name] + value;
  }
}

function number(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}

function changeOf({ envelope: { type, data } }: StoredEvent): Partial<Sums> | null {
  switch (type) {
    case "agent.usage":
      return { costMicro: number(data["cost_micro_usd"]), tokens: number(data["input_tokens"]) + number(data["output_tokens"]) };
    case "agent.turn_started":
      return { turn: number(data["turn"]) };
    case "agent.tool_use":
      return { calls: 1 };
    case "agent.file_edited":
      return { edits: 1 };
    default:
      return markOf({ stream_sequence: 0, envelope: { id: "", type, source: "", time: "", data } }) === "error" ? { errors: 1 } : null;
  }
}

/** Whether the result of a call counts as an error: by its outcome, or by `is_error` if the harness reports no outcome. */
function hasFailed(data: Record<string, unknown> | undefined): boolean {
  const outcome = data?.["outcome"];
  return typeof outcome === "string" ? FAILED_OUTCOMES.has(outcome) : data?.["is_error"] === true;
}

function markOf(event: StoredEvent): MarkKind | null {
  const { type, data } = event.envelope;
  if (type === "agent.file_edited") return "edit";
  if (type === "agent.turn_started") return "turn";
  if (type === "agent.approval_requested") return "approval";
  if (type === "agent.tool_result") return hasFailed(data) ? "error" : null;
  const sandbox = SANDBOX_STATES[type];
  if (ERRORS.has(type) || sandbox === "failed") return "error";
  if (TERMINAL.has(type) || sandbox === "terminated") return "end";
  if (type === "monitor.guardian_analysed" || type === "monitor.intervention_decided") return "finding";
  return /^monitor\.\w+_found$/.test(type) ? "finding" : null;
}
