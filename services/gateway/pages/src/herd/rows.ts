/** The rows of the list of tasks, and how events change them. */

import type { Reply } from "../api/client";
import { TASK_STATES } from "../api/event_facts";
import type { Envelope } from "../api/live";

export type Task = Reply<"list_tasks">["tasks"][number];
type State = Task["state"];

export const LIVE: readonly State[] = ["pending", "assigned", "running"];
export const ENDED: readonly State[] = ["completed", "failed", "cancelled"];

export interface View {
  name: string;
  title: string;
  states: readonly State[];
}

export const VIEWS: readonly View[] = [
  { name: "", title: "Live", states: LIVE },
  { name: "running", title: "Running", states: ["assigned", "running"] },
  { name: "queued", title: "Queued", states: ["pending"] },
  { name: "failed", title: "Failed", states: ["failed"] },
  { name: "ended", title: "Ended", states: ENDED },
  { name: "all", title: "All", states: [] },
];

export function viewOf(name: string | null): View {
  return VIEWS.find((view) => view.name === (name ?? "")) ?? (VIEWS[0] as View);
}

/** Of how many tasks the last event is remembered. */
const REMEMBERED = 2000;

/** Whether a list may have other rows after this event. */
export function changesList({ type }: Envelope): boolean {
  return type in TASK_STATES || type === "task.timed_out" || type.startsWith("branch.pull_request");
}

/** How far a task is: a later state of an attempt is more, and every state of the next attempt is more than that. */
function progress(attempt: number, state: State): number {
  return attempt * 4 + (ENDED.includes(state) ? 3 : LIVE.indexOf(state));
}

/** The attempt that a task is in after this event: one that failed is followed by the next one. */
function attemptOf({ type, data }: Envelope): number | null {
  const named = data["attempt"];
  return typeof named !== "number" ? null : type === "task.retry_scheduled" ? named + 1 : named;
}

/** The row after an event of its task; the same object if nothing changes. */
export function patched(row: Task, event: Envelope): Task {
  const state = TASK_STATES[event.type];
  if (state === undefined || event["taskid"] !== row.task) return row;
  const data = event.data;
  const attempt = attemptOf(event) ?? row.attempt ?? 1;
  // An event changes nothing if it arrives late, or if the list was read after it.
  if (progress(attempt, state) <= progress(row.attempt ?? 1, row.state)) return row;
  const sandbox = typeof data["sandbox"] === "string" ? data["sandbox"] : row.sandbox;
  const changed: Task = { ...row, state, attempt, sandbox: sandbox ?? null };
  if (state === "running") changed.started_at = event.time;
  if (ENDED.includes(state)) changed.ended_at = event.time;
  else changed.ended_at = null;
  if (typeof data["error"] === "string") changed.error = data["error"];
  return changed;
}

/** Rows after an event: the same array if none of them changes. */
export function patchedAll(rows: readonly Task[], event: Envelope): readonly Task[] {
  const index = rows.findIndex((row) => row.task === event["taskid"]);
  const row = rows[index];
  if (!row) return rows;
  const changed = patched(row, event);
  return changed === row ? rows : rows.with(index, changed);
}

/** The last event of each task that changes its row: a list may be older than what was already shown. */
export class LastEvents {
  #events = new Map<string, Envelope>();

  /** Remember an event; of too many tasks, those whose events came first are left out. */
  add(event: Envelope): void {
    const task = event["taskid"];
    const state = TASK_STATES[event.type];
    if (typeof task !== "string" || state === undefined) return;
    const last = this.#events.get(task);
    // A late event of an earlier attempt does not replace a newer one; a submitted task is another one of its name.
    if (last && event.type !== "task.submitted") {
      const lastState = TASK_STATES[last.type] as State;
      if (progress(attemptOf(event) ?? 1, state) < progress(attemptOf(last) ?? 1, lastState)) return;
    }
    this.#events.delete(task);
    this.#events.set(task, event);
    if (this.#events.size > REMEMBERED) this.#events.delete(this.#events.keys().next().value as string);
  }

  /** The rows of a list, each at least as new as the last event of its task. */
  applied(rows: readonly Task[]): Task[] {
    return rows.map((row) => {
      const last = this.#events.get(row.task);
      return last ? patched(row, last) : row;
    });
  }
}

/** The next page behind the rows that there are: a task that moved between pages is shown once. */
export function joined(rows: readonly Task[], page: readonly Task[]): Task[] {
  const known = new Set(rows.map((row) => row.task));
  return [...rows, ...page.filter((row) => !known.has(row.task))];
}
