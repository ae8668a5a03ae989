/** The rows of the list of tasks, and how events change them. */

import type { Reply } from "../api/client";
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

const STATES: Record<string, State> = {
  "task.submitted": "pending",
  "task.assigned": "assigned",
  "task.running": "running",
  "task.completed": "completed",
  "task.failed": "failed",
  "task.cancelled": "cancelled",
  "task.retry_scheduled": "pending",
};

/** Whether a list may have other rows after this event. */
export function changesList({ type }: Envelope): boolean {
  return type in STATES || type === "task.timed_out" || type.startsWith("branch.pull_request");
}

/** The row after an event of its task; the same object if nothing changes. */
export function patched(row: Task, event: Envelope): Task {
  const state = STATES[event.type];
  if (state === undefined || event["taskid"] !== row.task) return row;
  const data = event.data;
  const attempt = typeof data["attempt"] === "number" ? data["attempt"] : row.attempt;
  // An event of an earlier attempt that arrives late changes nothing.
  if ((attempt ?? 1) < (row.attempt ?? 1)) return row;
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

/** The next page behind the rows that there are: a task that moved between pages is shown once. */
export function joined(rows: readonly Task[], page: readonly Task[]): Task[] {
  const known = new Set(rows.map((row) => row.task));
  return [...rows, ...page.filter((row) => !known.has(row.task))];
}
