/** A unified diff as lines with numbers. */

import { plain } from "./format";

export type Sign = "+" | "-" | " " | "@" | "#";

/** The lines of a diff: plain columns, so that millions of lines need no objects. */
export class Patch {
  readonly #text: string;
  readonly #starts: number[] = [];
  readonly #old: number[] = [];
  readonly #new: number[] = [];
  readonly #signs: string[] = [];
  /** The length of the longest line, in characters. */
  width = 0;
  added = 0;
  removed = 0;

  constructor(text: string) {
    this.#text = text;
    let start = 0;
    let left = 0;
    let right = 0;
    let inside = false;
    while (start < text.length) {
      const found = text.indexOf("\n", start);
      const end = found < 0 ? text.length : found;
      let sign: Sign = "#";
      const first = text[start];
      if (first === "@" && text.startsWith("@@", start)) {
        const match = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(text.slice(start, start + 80));
        [left, right, inside, sign] = [Number(match?.[1] ?? 0), Number(match?.[2] ?? 0), true, "@"];
      } else if (first === "d" && text.startsWith("diff ", start)) inside = false;
      else if (inside && (first === "+" || first === "-" || first === " " || end === start)) sign = end === start ? " " : (first as Sign);
      this.#starts.push(start);
      this.#signs.push(sign);
      this.#old.push(sign === "-" || sign === " " ? left++ : 0);
      this.#new.push(sign === "+" || sign === " " ? right++ : 0);
      if (sign === "+") this.added += 1;
      if (sign === "-") this.removed += 1;
      this.width = Math.max(this.width, end - start);
      start = end + 1;
    }
    this.#starts.push(text.endsWith("\n") ? text.length : text.length + 1);
  }

  get count(): number {
    return this.#signs.length;
  }

  line(index: number): { sign: Sign; old: number; new: number; text: string } {
    const start = this.#starts[index] ?? 0;
    const end = (this.#starts[index + 1] ?? start + 1) - 1;
    const sign = (this.#signs[index] ?? "#") as Sign;
    const from = sign === "@" || sign === "#" ? start : start + 1;
    const whole = this.#text.slice(from, end);
    const text = whole.length > 2000 ? `${whole.slice(0, 2000)} … ${whole.length - 2000} more characters` : whole;
    return { sign, old: this.#old[index] ?? 0, new: this.#new[index] ?? 0, text: plain(text) };
  }

  /** The index of the next hunk behind or before a line; -1 if there is none. */
  hunk(from: number, backward = false): number {
    for (let index = from + (backward ? -1 : 1); index >= 0 && index < this.count; index += backward ? -1 : 1) {
      if (this.#signs[index] === "@") return index;
    }
    return -1;
  }
}
