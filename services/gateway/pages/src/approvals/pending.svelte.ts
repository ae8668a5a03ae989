/** The pending approvals of the project: their number is in the navigation and in the title of every page. */

import { get, type Reply } from "../api/client";
import { Replies } from "../api/replies";
import { live } from "../shell/live.svelte";

export type Approval = Reply<"approvals">["approvals"][number];

/** Pages of one sandbox receive only its events: the number is also read from time to time. */
const INTERVAL = 30_000;
const SETTLED = 300;

class Pending {
  approvals = $state.raw<Approval[]>([]);
  error = $state.raw<unknown>(null);
  loaded = $state(false);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #arrived = new Set<(approvals: Approval[]) => void>();
  #replies = new Replies();

  get count(): number {
    return this.approvals.length;
  }

  /** Call `action` with approvals that were not pending before. */
  onArrival(action: (approvals: Approval[]) => void): () => void {
    this.#arrived.add(action);
    return () => this.#arrived.delete(action);
  }

  /** Read the pending approvals, and again whenever one changes; the result ends that. */
  watch(): () => void {
    void this.load();
    const interval = setInterval(() => void this.load(), INTERVAL);
    const end = live.receive({
      event: ({ type }) => {
        if (type.startsWith("approval.") || type === "agent.approval_withdrawn") this.#soon();
      },
      refresh: () => void this.load(),
    });
    return () => {
      clearInterval(interval);
      clearTimeout(this.#timer);
      this.#timer = undefined;
      end();
    };
  }

  async load(): Promise<void> {
    const take = this.#replies.begin();
    try {
      const found = await get<"approvals">("/approvals", { state: "pending", limit: 200 });
      if (!take()) return;
      const known = new Set(this.approvals.map(keyOf));
      const added = found.approvals.filter((approval) => !known.has(keyOf(approval)));
      this.approvals = inPlace(this.approvals, found.approvals);
      this.error = null;
      if (this.loaded && added.length) for (const action of this.#arrived) action(added);
      this.loaded = true;
    } catch (error) {
      if (take()) this.error = error;
    }
  }

  /** Several events at once are one request. */
  #soon(): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.load();
    }, SETTLED);
  }
}

/** New approvals are behind those that are shown: a click on one that is shown does not hit another. */
export function inPlace(shown: readonly Approval[], found: readonly Approval[]): Approval[] {
  const left = new Map(found.map((approval) => [keyOf(approval), approval]));
  const kept = shown.flatMap((approval) => left.get(keyOf(approval)) ?? []);
  kept.forEach((approval) => left.delete(keyOf(approval)));
  return [...kept, ...left.values()];
}

export function keyOf(approval: Approval): string {
  return `${approval.sandbox} ${approval.approval_id}`;
}

export const pending = new Pending();
