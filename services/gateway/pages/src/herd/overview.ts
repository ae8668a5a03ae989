/** What needs a user, first the most urgent: approvals, questions, stuck agents, budgets, failed tasks. */

import type { MonitorReport, ProjectOverview } from "../api/schema";

export const KINDS = ["approval", "waiting", "paused", "coordination", "stuck", "budget", "failed"] as const;
export type Kind = (typeof KINDS)[number];

export interface Need {
  key: string;
  kind: Kind;
  task: string | null;
  sandbox: string | null;
  since: string | null;
  text: string;
}

const TITLES: Record<Kind, string> = {
  approval: "approval",
  waiting: "waits for you",
  paused: "paused",
  coordination: "conflict",
  stuck: "stuck",
  budget: "over budget",
  failed: "failed",
};

export function titleOf(kind: Kind): string {
  return TITLES[kind];
}

/** The needs of an overview and of the monitor's report, each once. */
export function needsOf(overview: ProjectOverview | null, report: MonitorReport | null): Need[] {
  const found = new Map<string, Need>();
  const add = (need: Omit<Need, "key">) => {
    const key = `${need.kind} ${need.sandbox ?? need.task ?? ""} ${need.kind === "approval" ? need.text : ""}`;
    if (!found.has(key)) found.set(key, { key, ...need });
  };
  for (const need of overview?.needs ?? []) {
    add({ kind: need.kind, task: need.task ?? null, sandbox: need.sandbox ?? null, since: need.since, text: need.text ?? "" });
  }
  for (const project of report?.projects ?? []) {
    for (const need of project.needs ?? []) {
      const kind = need.reason;
      // An approval that the monitor requested is one of the approvals already.
      if (need.approval_id && overview?.needs.some((other) => other.approval_id === need.approval_id)) continue;
      // A sandbox that waits because of its approval has one need.
      if (kind === "waiting" && overview?.needs.some((other) => other.kind === "approval" && other.sandbox === need.sandbox)) continue;
      add({ kind, task: need.task ?? null, sandbox: need.sandbox ?? null, since: need.since, text: "" });
    }
    for (const steered of project.interventions ?? []) {
      const rules = steered.findings ?? [];
      if (!rules.length) continue;
      add({ kind: "stuck", task: steered.task ?? null, sandbox: steered.sandbox, since: steered.informed_at ?? null, text: rules.join(", ") });
    }
  }
  const rank = (need: Need) => KINDS.indexOf(need.kind);
  return [...found.values()].sort((a, b) => rank(a) - rank(b) || (a.since ?? "").localeCompare(b.since ?? ""));
}

/** The sum of counts of some states. */
export function sumOf(counts: Record<string, number> | undefined, states: readonly string[]): number {
  return states.reduce((sum, state) => sum + (counts?.[state] ?? 0), 0);
}

export interface Bucket {
  begins_at: string;
  value: number;
}

/** One value for each interval of an overview: those without events are zero. */
export function series(overview: ProjectOverview, field: "events" | "cost_micro_usd"): Bucket[] {
  const step = overview.bucket_seconds * 1000;
  const values = new Map(overview.buckets.map((bucket) => [Math.floor(Date.parse(bucket.begins_at) / step), bucket[field] ?? 0]));
  const first = Math.floor(Date.parse(overview.since) / step) + 1;
  const last = Math.floor(Date.parse(overview.until) / step);
  const found: Bucket[] = [];
  for (let index = first; index <= last; index++) {
    found.push({ begins_at: new Date(index * step).toISOString(), value: values.get(index) ?? 0 });
  }
  return found;
}
