/** Reading lists of what is stored, which may be behind the live events that have arrived. */

const FIRST_WAIT = 200;
const LONGEST_WAIT = 5_000;

/** Reads a list now, and again until everything up to a position is stored. One request at a time, so that an earlier
 * reply never replaces a later one. */
export class StoredList {
  #wanted = 0;
  #reading = false;
  #again = false;
  #stopped = false;

  /** `read` returns the position up to which the list is complete; infinite if it is not to be read again. */
  constructor(
    private readonly read: () => Promise<number>,
    private readonly sleep = (milliseconds: number) => new Promise<void>((resolve) => setTimeout(resolve, milliseconds)),
  ) {}

  /** Read now, with everything up to this position of the stream. */
  to(position: number): void {
    this.#wanted = Math.max(this.#wanted, position);
    this.#again = true;
    if (!this.#reading) void this.#run();
  }

  stop(): void {
    this.#stopped = true;
  }

  async #run(): Promise<void> {
    this.#reading = true;
    let wait = FIRST_WAIT;
    while (this.#again && !this.#stopped) {
      this.#again = false;
      if ((await this.read()) >= this.#wanted || this.#again || this.#stopped) continue;
      await this.sleep(wait);
      wait = Math.min(wait * 2, LONGEST_WAIT);
      this.#again = true;
    }
    this.#reading = false;
  }
}
