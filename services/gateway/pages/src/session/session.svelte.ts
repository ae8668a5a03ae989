/** The state of the page of one sandbox: what the API states about it, and its history. */

import { ApiError, get, path, type Reply } from "../api/client";
import { TERMINAL } from "../api/event_facts";
import type { LiveEvent } from "../api/live";
import { Replies } from "../api/replies";
import { live } from "../shell/live.svelte";
import type { StoredEvent } from "./events";
import { History, type Page } from "./history";
import type { Ref } from "./timeline";

export type SandboxView = Reply<"get_sandbox">;
export type TaskView = Reply<"get_task">;
export type MonitorView = Reply<"monitored">;

/** States of a sandbox after which nothing follows. */
export const ENDED = new Set(["terminated", "failed", "lost"]);
/** Milliseconds between two requests for the state, while something may change. */
const INTERVAL = 5_000;
const SETTLED = 300;
/** Milliseconds until a hidden tab ends its stream. */
const HIDDEN = 5_000;
/** Domains and types of events after which the state is read again. */
const CHANGES = /^(sandbox|task|branch|approval|monitor)\./;
const CHANGING = new Set([...TERMINAL, "agent.started", "agent.shutdown", "agent.usage", "agent.turn_completed"]);

export class SessionState {
  view = $state.raw<SandboxView | null>(null);
  task = $state.raw<TaskView | null>(null);
  monitor = $state.raw<MonitorView | null>(null);
  error = $state.raw<unknown>(null);
  /** It changes at most once a frame when rows have. */
  version = $state(0);
  readonly history: History;
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #stopped = false;
  #hidden: ReturnType<typeof setTimeout> | undefined;
  #views = new Replies();
  #details = new Replies();

  constructor(readonly id: string) {
    this.history = new History(
      {
        newest: async (cursor, limit) => (await get<"sandbox_events">(this.#path("events"), { newest_first: true, cursor, limit })) as unknown as Page,
        one: (ref) => this.#one(ref),
        follow: (after) => live.follow(id, after),
      },
      () => this.#changed(),
    );
  }

  get ended(): boolean {
    return this.view !== null && ENDED.has(this.view.state);
  }

  /** Whether there is no such sandbox: nothing is read again by itself. */
  get missing(): boolean {
    return this.error instanceof ApiError && this.error.missing;
  }

  /** Read and follow the session; the result ends that. */
  start(): () => void {
    const end = live.receive({
      event: (event) => this.#take(event),
      refresh: (position) => void this.history.begin(position),
    });
    this.reload();
    const seen = () => this.#seen();
    document.addEventListener("visibilitychange", seen);
    void this.load();
    const interval = setInterval(() => {
      if (document.hidden || this.missing) return;
      if (live.connection === "waiting") live.refresh();
      if (!(this.ended && this.task?.ended_at)) void this.load();
    }, INTERVAL);
    return () => {
      this.#stopped = true;
      document.removeEventListener("visibilitychange", seen);
      clearInterval(interval);
      clearTimeout(this.#timer);
      clearTimeout(this.#hidden);
      cancelAnimationFrame(this.#frame);
      end();
    };
  }

  /** Read and follow the history anew, after an error. A hidden tab has no stream of its own: a browser opens six. */
  reload(): void {
    live.stop();
    if (!document.hidden) live.follow(this.id);
  }

  /** A tab that is hidden for a while ends its stream; when it is shown again it catches up. */
  #seen(): void {
    clearTimeout(this.#hidden);
    if (document.hidden) this.#hidden = setTimeout(() => live.stop(), HIDDEN);
    else if (live.stopped) this.reload();
  }

  async load(): Promise<void> {
    const take = this.#views.begin();
    try {
      const view = await get<"get_sandbox">(this.#path());
      if (!take()) return;
      this.view = view;
      this.error = null;
      if (live.connection === "missing") this.reload();
      await this.#load(view.task);
    } catch (error) {
      if (take()) this.error = error;
    }
  }

  /** Read what the page shows in addition to the sandbox, as far as it can be read. */
  async #load(name: string | null | undefined): Promise<void> {
    const take = this.#details.begin();
    const [task, monitor] = await Promise.allSettled([
      name ? get<"get_task">(path("tasks", name)) : Promise.resolve(null),
      get<"monitored">(this.#path("monitor")),
    ]);
    if (!take()) return;
    if (task.status === "fulfilled") this.task = task.value;
    if (monitor.status === "fulfilled") this.monitor = monitor.value;
  }

  #take({ sequence, envelope }: LiveEvent): void {
    this.history.take({ stream_sequence: sequence, envelope });
    if (!CHANGES.test(envelope.type) && !CHANGING.has(envelope.type)) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.load();
    }, SETTLED);
  }

  #path(...parts: string[]): string {
    return path("sandboxes", this.id, ...parts);
  }

  async #one(ref: Ref): Promise<StoredEvent | null> {
    const query = { source: ref.source, after_sequence: ref.number - 1, limit: 1 };
    const found = (await get<"sandbox_events">(this.#path("events"), query)) as unknown as Page;
    return found.events.find((event) => event.envelope["sequence"] === ref.number) ?? null;
  }

  /** Redraw at most once a frame; a tab that is not visible redraws when it is. */
  #changed(): void {
    if (this.#frame || this.#stopped) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.version += 1;
    });
  }
}
