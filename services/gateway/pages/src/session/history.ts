/** Reading the events of one sandbox: pages from the end to the beginning, and then live ones, without gaps. */

import { sequenceOf } from "../api/live";
import type { StoredEvent } from "./events";
import { type Ref, type Row, Timeline } from "./timeline";

export interface Page {
  events: StoredEvent[];
  next_cursor?: string | null;
  /** Every event up to this position was stored before the page was read; null if that is not known. */
  stored_through?: number | null;
}

/** Events of pages, oldest first, and up to which position they are complete. */
interface Read {
  events: StoredEvent[];
  complete: number;
  /** Where what is before them is read; undefined if they continue what is loaded. */
  before: string | null | undefined;
}

/** What is read with: requests to the API. */
export interface Source {
  /** Events, the newest first. */
  newest(cursor: string | null, limit: number): Promise<Page>;
  /** The event of a source with this number. */
  one(ref: Ref): Promise<StoredEvent | null>;
  /** Follow live events behind a position. */
  follow(after: string): void;
}

const FIRST_PAGE = 200;
const PAGE = 1000;
/** How many pages are read to close a gap; a larger one begins the timeline anew. */
const PAGES_OF_A_GAP = 20;
/** How many complete events are held, so that details of recent rows need no request. */
const HELD = 400;

export class History {
  timeline = new Timeline();
  /** Whether earlier events are stored that are not loaded. */
  more = false;
  loading = false;
  /** Whether the first page has arrived. */
  begun = false;
  error: unknown = null;
  /** Whether events may be missing between those that are loaded: what followed a loss could not be read. */
  torn = false;
  #cursor: string | null = null;
  #waiting: StoredEvent[] | null = [];
  #joining = false;
  #beginnings = 0;
  #recent = new Map<number, StoredEvent>();

  constructor(
    private readonly source: Source,
    private readonly changed: () => void,
  ) {}

  /** A live event. */
  take(event: StoredEvent): void {
    if (this.#waiting) this.#waiting.push(event);
    else {
      this.#hold([event]);
      this.timeline.append([event]);
      this.changed();
    }
  }

  /** The live stream begins at this position. What is stored may not have all events up to there yet, and a later event
   * may be stored before an earlier one, so the stream is opened again behind what is stored completely. If it does not
   * have that any more (`resync`), what is stored has it. A later beginning replaces one that is not done. */
  async begin(position: string): Promise<void> {
    const number = ++this.#beginnings;
    const wanted = sequenceOf(position);
    if (this.#joining) {
      this.#joining = false;
      if (wanted === this.#behind) return this.#join();
    }
    this.#waiting ??= [];
    let read: Read;
    try {
      read = await this.#read();
    } catch (error) {
      if (number !== this.#beginnings) return;
      this.error = error;
      this.torn = this.begun;
      this.#join();
      return;
    }
    if (number !== this.#beginnings) return;
    this.#place(read);
    const complete = Math.max(read.complete, this.timeline.last);
    const tried = this.#behind === complete;
    this.#add(read.events, tried ? Math.max(complete, wanted) : complete);
    if (complete >= wanted || tried) return this.#join();
    this.#behind = complete;
    this.#waiting = [];
    this.#joining = true;
    this.source.follow(`${position.slice(0, position.indexOf("-"))}-${complete}`);
  }

  /** The position behind which the stream was opened last: it is not tried twice. */
  #behind = -1;

  #join(): void {
    const waiting = this.#waiting ?? [];
    this.#waiting = null;
    this.#hold(waiting);
    this.timeline.append(waiting);
    this.changed();
  }

  /** Read pages from the end until they meet what is loaded; from the beginning if no page was read yet. */
  async #read(): Promise<Read> {
    const known = this.begun && !this.torn ? this.timeline.last : 0;
    const events: StoredEvent[] = [];
    let cursor: string | null = null;
    let complete = 0;
    let meets = false;
    for (let count = 0; count < PAGES_OF_A_GAP && !meets; count += 1) {
      const page: Page = await this.source.newest(cursor, count ? PAGE : FIRST_PAGE);
      if (count === 0) complete = page.stored_through ?? 0;
      events.push(...page.events);
      cursor = page.next_cursor ?? null;
      meets = known === 0 || cursor === null || (events.at(-1)?.stream_sequence ?? 0) <= known;
    }
    return { events: events.reverse(), complete, before: known === 0 || !meets ? cursor : undefined };
  }

  /** Begin the timeline anew if the events do not continue it. */
  #place({ before }: Read): void {
    if (before === undefined) return;
    this.timeline = new Timeline();
    this.#start(before);
  }

  #start(cursor: string | null): void {
    this.#cursor = cursor;
    this.more = cursor !== null;
  }

  #add(read: readonly StoredEvent[], through: number): void {
    const events = read.filter((event) => event.stream_sequence <= through);
    this.#hold(events);
    this.timeline.append(events);
    this.begun = true;
    this.torn = false;
    this.error = null;
    this.changed();
  }

  /** Read earlier events; whether there were any. */
  async earlier(): Promise<boolean> {
    if (this.loading || !this.more || !this.begun || this.torn) return false;
    this.loading = true;
    this.changed();
    try {
      const timeline = this.timeline;
      const page = await this.source.newest(this.#cursor, PAGE);
      if (timeline !== this.timeline) return false;
      timeline.prepend(page.events.slice().reverse());
      this.#start(page.next_cursor ?? null);
      this.error = null;
      return page.events.length > 0;
    } catch (error) {
      this.error = error;
      return false;
    } finally {
      this.loading = false;
      this.changed();
    }
  }

  /** The complete events of a row. An event that is not stored yet is left out. */
  details(row: Row): Promise<StoredEvent[]> {
    return this.eventsAt(row.refs);
  }

  async eventsAt(refs: readonly Ref[]): Promise<StoredEvent[]> {
    const found = await Promise.all(refs.map((ref) => this.#recent.get(ref.sequence) ?? this.source.one(ref)));
    return found.filter((event) => event !== null);
  }

  #hold(events: readonly StoredEvent[]): void {
    for (const event of events.slice(-HELD)) this.#recent.set(event.stream_sequence, event);
    for (const sequence of this.#recent.keys()) {
      if (this.#recent.size <= HELD) break;
      this.#recent.delete(sequence);
    }
  }
}
