import { readFileSync } from "node:fs";
import { expect, it } from "vitest";
import type { MonitorReport, ProjectOverview } from "../api/schema";
import type { Envelope } from "../api/live";
import { needsOf, series, sumOf } from "./overview";
import { joined, LastEvents, patched, patchedAll, type Task, viewOf } from "./rows";

const EXAMPLES = new URL("../../../../../libs/sandherd/contracts/golden/v1/events/", import.meta.url);
const example = (type: string) => JSON.parse(readFileSync(new URL(`${type}.json`, EXAMPLES), "utf8")) as Envelope;
const row = (changes: Partial<Task> = {}) =>
  ({ project: "demo", task: "task-01m7wd7tqve1h9zbemt7k2mzgv", state: "pending", attempt: 1, submitted_at: "2026-11-20T12:00:00Z", ...changes }) as Task;

it("changes a row by each event of its task", () => {
  const assigned = patched(row(), example("task.assigned"));
  expect([assigned.state, assigned.attempt, assigned.sandbox]).toEqual(["assigned", 2, "sbx-01m7wd7tqweb6sfs5dapam4mwj"]);
  const failed = patched(patched(assigned, example("task.running")), example("task.failed"));
  expect([failed.state, failed.error, failed.started_at, failed.ended_at]).toEqual([
    "failed", "no heartbeat and no event for 90 s", "2026-11-20T12:00:09.500000Z", "2026-11-20T12:00:10Z",
  ]);
  const later = row({ attempt: 3, state: "running" });
  expect(patched(later, example("task.failed"))).toBe(later);
  const rows = [row({ task: "task-other" }), row()];
  expect(patchedAll(rows, example("agent.usage"))).toBe(rows);
  expect(patchedAll(rows, example("task.completed")).map((one) => one.state)).toEqual(["pending", "completed"]);
  expect(joined([row()], [row(), row({ task: "task-2" })]).map((one) => one.task)).toEqual([row().task, "task-2"]);
  expect([viewOf("failed").title, viewOf("nonsense").title, viewOf(null).title]).toEqual(["Failed", "Live", "Live"]);
});

it("shows no list that is older than an event which was already shown", () => {
  const event = (type: string, attempt: number) => ({ ...example(type), data: { attempt } }) as Envelope;
  const last = new LastEvents();
  const state = () => last.applied([row({ state: "assigned", attempt: 2 })])[0]?.state;
  last.add(example("agent.usage"));
  expect(state()).toBe("assigned");
  last.add(event("task.running", 1));
  expect(state()).toBe("assigned");
  last.add(event("task.completed", 2));
  last.add(event("task.running", 2));
  expect(state()).toBe("completed");
  const again = last.applied([row({ state: "pending", attempt: 3 })])[0];
  expect(again?.state).toBe("pending");
  const retried = patched(row({ state: "running", attempt: 1 }), event("task.retry_scheduled", 1));
  expect([retried.state, retried.attempt]).toEqual(["pending", 2]);
  expect(patched(retried, event("task.running", 1))).toBe(retried);
});

const overview = {
  tasks: { running: 2, pending: 3 }, sandboxes: {}, need_count: 2, bucket_seconds: 60,
  since: "2026-11-20T12:00:30Z", until: "2026-11-20T12:04:10Z",
  buckets: [{ begins_at: "2026-11-20T12:02:00Z", events: 7, cost_micro_usd: 5 }],
  needs: [
    { kind: "failed", project: "demo", task: "task-1", since: "2026-11-20T12:00:00Z", text: "tests fail" },
    { kind: "approval", project: "demo", sandbox: "sbx-1", approval_id: "a-1", since: "2026-11-20T12:00:00Z", text: "Bash" },
  ],
} as unknown as ProjectOverview;
const report = {
  projects: [{
    project: "demo",
    needs: [
      { sandbox: "sbx-1", reason: "paused", since: "2026-11-20T12:00:00Z", approval_id: "a-1" },
      { sandbox: "sbx-1", reason: "waiting", since: "2026-11-20T12:00:00Z" },
      { sandbox: "sbx-2", reason: "waiting", since: "2026-11-20T12:00:00Z" },
    ],
    interventions: [{ sandbox: "sbx-3", findings: ["loop"], interventions: 1 }, { sandbox: "sbx-4", findings: [] }],
  }],
} as unknown as MonitorReport;

it("has what needs a user once, the most urgent first", () => {
  expect(needsOf(overview, report).map((need) => [need.kind, need.sandbox ?? need.task, need.text])).toEqual([
    ["approval", "sbx-1", "Bash"], ["waiting", "sbx-2", ""], ["stuck", "sbx-3", "loop"], ["failed", "task-1", "tests fail"],
  ]);
  expect(needsOf(null, null)).toEqual([]);
  expect(sumOf(overview.tasks, ["running", "assigned"])).toBe(2);
  expect(series(overview, "events").map((bucket) => bucket.value)).toEqual([0, 7, 0, 0]);
});
