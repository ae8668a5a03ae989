/**
 * One connection for all tabs of a browser: over HTTP/1.1 a browser opens six to a host, and a seventh tab would hang.
 *
 * The tab that has the lock reads the stream and relays it to the others. When it closes, another one continues at the
 * last position, so that no event is missing.
 */

import type { Connection, Listener, LiveEvent } from "./live";
import { sequenceOf } from "./live";

/** How long a tab waits for the one that reads, in milliseconds, before it reads the stream itself. */
const PATIENCE = 10_000;

export interface Stream {
  close(): void;
}

type Notice =
  | { kind: "state"; state: Connection; position: string }
  | { kind: "ready" | "resync"; position: string }
  | { kind: "event"; event: LiveEvent };
type Message = Notice | { kind: "hello" };

/** The parts of a browser that this uses. */
export interface Tabs {
  locks: Pick<LockManager, "request"> | undefined;
  channel(name: string): Pick<BroadcastChannel, "postMessage" | "close" | "onmessage">;
}

const BROWSER: Tabs = {
  locks: typeof navigator === "undefined" ? undefined : navigator.locks,
  channel: (name) => new BroadcastChannel(name),
};

/** A stream that is shared with the other tabs of the same name. */
export class SharedStream implements Stream {
  #channel: ReturnType<Tabs["channel"]>;
  #closed = new AbortController();
  #own: Stream | null = null;
  #position = "";
  #state: Connection = "connecting";
  #waiting: ReturnType<typeof setTimeout> | undefined;

  constructor(
    name: string,
    private readonly listener: Listener,
    private readonly open: (listener: Listener, after: string) => Stream,
    tabs: Tabs = BROWSER,
  ) {
    this.#channel = tabs.channel(name);
    this.#channel.onmessage = ({ data }) => this.#receive(data as Message);
    if (!tabs.locks) {
      this.#read();
      return;
    }
    const ended = new Promise<void>((resolve) => this.#closed.signal.addEventListener("abort", () => resolve()));
    const lead = () => {
      this.#read();
      return ended;
    };
    tabs.locks.request(name, { signal: this.#closed.signal }, lead).catch(() => undefined);
    this.#channel.postMessage({ kind: "hello" } satisfies Message);
    this.#waiting = setTimeout(() => this.#read(), PATIENCE);
  }

  close(): void {
    this.#closed.abort();
    clearTimeout(this.#waiting);
    this.#own?.close();
    this.#channel.close();
  }

  /** Read the stream for all tabs, behind what this tab has received. */
  #read(): void {
    clearTimeout(this.#waiting);
    if (this.#own || this.#closed.signal.aborted) return;
    const relay = (message: Notice) => {
      this.#take(message);
      if (!this.#closed.signal.aborted) this.#channel.postMessage(message);
    };
    this.#own = this.open(
      {
        event: (event) => relay({ kind: "event", event }),
        ready: (position) => relay({ kind: "ready", position }),
        resync: (position) => relay({ kind: "resync", position }),
        state: (state) => relay({ kind: "state", state, position: this.#position }),
      },
      this.#position,
    );
  }

  #receive(message: Message): void {
    if (message.kind !== "hello") {
      clearTimeout(this.#waiting);
      // Two tabs may read for a moment: then each has its own events already.
      if (!this.#own) this.#take(message);
    } else if (this.#own && this.#position) {
      this.#channel.postMessage({ kind: "state", state: this.#state, position: this.#position } satisfies Message);
    }
  }

  #take(message: Notice): void {
    if (message.kind === "event") {
      const { position, sequence } = message.event;
      if (sequence <= sequenceOf(this.#position) && epochOf(position) === epochOf(this.#position)) return;
      this.#position = position;
      this.listener.event?.(message.event);
    } else if (message.kind === "state") {
      if (!this.#position && message.position) this.#begin(message.position);
      if (message.state !== this.#state) this.listener.state?.((this.#state = message.state));
    } else if (message.kind === "resync") {
      this.#position = message.position;
      this.listener.resync?.(message.position);
    } else {
      this.#begin(message.position);
    }
  }

  #begin(position: string): void {
    if (!this.#position) this.#position = position;
    this.listener.ready?.(position);
  }
}

function epochOf(position: string): string {
  return position.slice(0, position.lastIndexOf("-"));
}
