/** The tab's one stream of events, and who receives them. */

import { type Connection, type Listener, type LiveEvent, LiveStream } from "../api/live";
import { PlacedStream } from "../api/places";
import { SharedStream, type Stream } from "../api/shared";

export interface Receiver {
  event?(event: LiveEvent): void;
  /** Read the state again: at the beginning of a stream, and when it has not all events since. */
  refresh?(position: string): void;
}

const PROJECT = "/events/stream";

class Live {
  connection = $state.raw<Connection>("connecting");
  #stream: Stream | null = null;
  #url = "";
  /** Whose events they are: tabs of another session do not share them. */
  audience = "";
  #receivers = new Set<Receiver>();
  #signedOut: () => void = () => undefined;

  /** Receive events while a page is shown; the result ends that. */
  receive(receiver: Receiver): () => void {
    this.#receivers.add(receiver);
    return () => this.#receivers.delete(receiver);
  }

  /** `action` is called when the session has ended. */
  onSignedOut(action: () => void): void {
    this.#signedOut = action;
  }

  /** Follow the whole project, or one sandbox: behind a position, also if it is followed already. */
  follow(sandbox: string | null = null, after = ""): void {
    const url = sandbox === null ? PROJECT : `/sandboxes/${encodeURIComponent(sandbox)}/events/stream`;
    if (this.#stream && this.#url === url && !after) return;
    const placed = this.#url === url && this.#stream instanceof PlacedStream ? this.#stream : null;
    if (!placed) this.stop();
    this.#url = url;
    this.connection = "connecting";
    let begun = false;
    const listener: Listener = {
      event: (event) => {
        for (const receiver of this.#receivers) receiver.event?.(event);
      },
      ready: (position) => {
        if (!begun) this.refresh(position);
        begun = true;
      },
      resync: (position) => {
        begun = true;
        this.refresh(position);
      },
      state: (state) => {
        this.connection = state;
        if (state === "signed-out") this.#signedOut();
        if (state === "missing") this.#stream?.close(); // it needs no place any more
      },
    };
    const open = (own: Listener, position: string) => new LiveStream(url, own, position);
    // All tabs of a project share a stream; the events of one sandbox are read behind the position that its page has.
    if (placed) placed.reopen(() => open(listener, after));
    else if (sandbox === null) this.#stream = new SharedStream(`sandherd ${this.audience}`, listener, open);
    else this.#stream = new PlacedStream(() => open(listener, after), () => this.#wait());
  }

  /** There is no stream meanwhile: what is stored can be read. */
  #wait(): void {
    this.connection = "waiting";
    this.refresh();
  }

  /** Let all read the state again, without a position of a stream. */
  refresh(position = ""): void {
    for (const receiver of this.#receivers) receiver.refresh?.(position);
  }

  get stopped(): boolean {
    return this.#stream === null;
  }

  stop(): void {
    this.#stream?.close();
    this.#stream = null;
    this.#url = "";
  }
}

export const live = new Live();
