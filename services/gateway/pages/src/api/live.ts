/** The live stream of events: one connection per tab, which continues without gaps where the last one ended. */

import { ApiError, address, problemOf } from "./client";
import { type Frame, FrameParser } from "./frames";

/** The document of an event (CloudEvents). */
export interface Envelope {
  id: string;
  type: string;
  source: string;
  time: string;
  subject?: string;
  data: Record<string, unknown>;
  [attribute: string]: unknown;
}

export interface LiveEvent {
  type: string;
  /** `<epoch>-<sequence>`: where to continue. */
  position: string;
  /** The sequence of the stream, as `stream_sequence` in lists. */
  sequence: number;
  envelope: Envelope;
}

/** `waiting`: the browser has as many streams open as it may. */
export type Connection = "connecting" | "waiting" | "live" | "reconnecting" | "signed-out" | "missing";

export interface Listener {
  event?(event: LiveEvent): void;
  /** The stream begins at this position: read lists now. */
  ready?(position: string): void;
  /** The stream has not all events since the last position: read all state again. */
  resync?(position: string): void;
  state?(state: Connection): void;
}

/** The delay before attempt `attempt`, in milliseconds: up to 15 s, and different for each tab. */
export function delay(attempt: number, random: number): number {
  return Math.min(15_000, 500 * 2 ** Math.min(attempt, 10)) * (0.5 + random / 2);
}

export function sequenceOf(position: string): number {
  return Number(position.slice(position.lastIndexOf("-") + 1)) || 0;
}

/** No heartbeat for this time, in milliseconds: the connection is lost. The gateway sends one every 15 s. */
const SILENCE = 40_000;

type Fetch = (url: string, options: RequestInit) => Promise<Response>;

/** A stream that reconnects by itself until it is closed, the session has ended, or its sandbox does not exist. */
export class LiveStream {
  #position: string;
  #closed = new AbortController();
  #attempt = 0;
  state: Connection = "connecting";

  constructor(
    private readonly url: string,
    private readonly listener: Listener,
    after = "",
    private readonly fetcher: Fetch = (url, options) => fetch(url, options),
  ) {
    this.#position = after;
    void this.#run();
  }

  get position(): string {
    return this.#position;
  }

  close(): void {
    this.#closed.abort();
  }

  async #run(): Promise<void> {
    while (!this.#closed.signal.aborted) {
      try {
        await this.#read();
      } catch (error) {
        if (error instanceof ApiError && error.signedOut) return this.#enter("signed-out");
        if (error instanceof ApiError && error.missing) return this.#enter("missing");
      }
      if (this.#closed.signal.aborted) return;
      this.#enter("reconnecting");
      await this.#pause(delay(this.#attempt++, Math.random()));
    }
  }

  #enter(state: Connection): void {
    if (this.#closed.signal.aborted || this.state === state) return;
    this.state = state;
    this.listener.state?.(state);
  }

  async #read(): Promise<void> {
    const connection = new AbortController();
    const end = () => connection.abort();
    this.#closed.signal.addEventListener("abort", end);
    let silence = setTimeout(end, SILENCE);
    try {
      const response = await this.fetcher(address(this.url, { after: this.#position }), {
        credentials: "same-origin",
        headers: { Accept: "text/event-stream" },
        cache: "no-store",
        signal: connection.signal,
      });
      if (!response.ok || !response.body) throw await problemOf(response);
      const parser = new FrameParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE);
        for (const frame of parser.push(value)) this.#take(frame);
      }
    } finally {
      clearTimeout(silence);
      this.#closed.signal.removeEventListener("abort", end);
      connection.abort();
    }
  }

  #take(frame: Frame): void {
    if (this.#closed.signal.aborted) return;
    this.#attempt = 0;
    const sequence = sequenceOf(frame.id);
    if (frame.event === "ready" || frame.event === "resync") {
      this.#position = frame.id;
      this.#enter("live");
      if (frame.event === "ready") this.listener.ready?.(frame.id);
      else this.listener.resync?.(frame.id);
      return;
    }
    this.#position = frame.id;
    const envelope = JSON.parse(frame.data) as Envelope;
    this.listener.event?.({ type: frame.event, position: frame.id, sequence, envelope });
  }

  /** Wait, or less if the network or the tab returns. */
  #pause(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const events = typeof window === "undefined" ? null : window;
      const finish = () => {
        clearTimeout(timer);
        events?.removeEventListener("online", finish);
        this.#closed.signal.removeEventListener("abort", finish);
        resolve();
      };
      const timer = setTimeout(finish, milliseconds);
      events?.addEventListener("online", finish);
      this.#closed.signal.addEventListener("abort", finish);
    });
  }
}
