/** Terminal output as lines of styled text. It is text of a sandbox: only colours and emphasis have an effect. */

import { plain } from "./format";

export interface Span {
  text: string;
  /** Classes: `b`, `d`, `i`, `u`, `r` (inverse), `f0` to `f15` and `g0` to `g15` for the colours of text and ground. */
  style: string;
}

interface Style {
  flags: string;
  front: number;
  back: number;
}

const PLAIN: Style = { flags: "", front: -1, back: -1 };
/** The longest part of a line that is shown, in characters; longer ones freeze browsers. */
export const LONGEST = 4_000;
// CSI with its parameters; OSC, DCS, APC and PM up to their end, which may be missing; other escapes.
const ESCAPES = /\u001b(?:\[([0-?]*)([ -/]*[@-~])|[\]P_^X][^\u0007\u001b]*(?:\u0007|\u001b\\|$)|[ -/]*[0-~]?)|\u009b([0-?]*)([ -/]*[@-~])|[\u0090\u009d-\u009f][^\u0007\u009c\u001b]*(?:\u0007|\u009c|\u001b\\|$)/g;

/** Lines of output, which grows at the end; what is not complete is the last line. */
export class TerminalText {
  readonly lines: string[] = [];
  /** The style at the beginning of a line, where it is not the plain one. */
  #styles = new Map<number, Style>();
  #style: Style = PLAIN;
  #open = "";
  /** The length of the longest line, in characters. */
  width = 0;
  size = 0;

  get count(): number {
    return this.lines.length + (this.#open ? 1 : 0);
  }

  push(text: string): void {
    this.size += text.length;
    let start = 0;
    for (;;) {
      const end = text.indexOf("\n", start);
      if (end < 0) break;
      this.#add(this.#open + text.slice(start, end));
      this.#open = "";
      start = end + 1;
    }
    this.#open = (this.#open + text.slice(start)).slice(-4 * LONGEST);
  }

  /** A line as it is on a terminal: the text after the last return to its beginning. */
  #add(line: string): void {
    if (this.#style !== PLAIN) this.#styles.set(this.lines.length, this.#style);
    this.lines.push(line);
    this.width = Math.max(this.width, Math.min(line.length, LONGEST));
    if (line.includes("\u001b")) this.#style = spans(line, this.#style).after;
  }

  /** The spans of a line. */
  line(index: number): Span[] {
    if (index < this.lines.length) return spans(this.lines[index]!, this.#styles.get(index) ?? PLAIN).spans;
    return index === this.lines.length ? spans(this.#open, this.#style).spans : [];
  }

  /** A line without styles. */
  text(index: number): string {
    return bare(index < this.lines.length ? this.lines[index]! : this.#open);
  }

  /** The next line behind `from` (or before it, backward) that contains a text in any case of letters; -1 if there is none. */
  find(wanted: string, from: number, backward = false): number {
    const needle = wanted.toLowerCase();
    if (!needle) return -1;
    const all = this.count;
    for (let step = 1; step <= all; step += 1) {
      const index = (from + (backward ? -step : step) + 2 * all) % all;
      if (this.text(index).toLowerCase().includes(needle)) return index;
    }
    return -1;
  }

  /** How many lines contain a text; counting ends at `most`. */
  matches(wanted: string, most = 10_000): number {
    const needle = wanted.toLowerCase();
    let found = 0;
    for (let index = 0; needle && index < this.count && found < most; index += 1) {
      if (this.text(index).toLowerCase().includes(needle)) found += 1;
    }
    return found;
  }
}

/** A text without escape sequences, and without what they would hide. */
export function bare(line: string): string {
  return plain(overwritten(line.replace(ESCAPES, "")));
}

function overwritten(line: string): string {
  const whole = line.endsWith("\r") ? line.slice(0, -1) : line;
  return whole.slice(whole.lastIndexOf("\r") + 1);
}

function spans(line: string, begin: Style): { spans: Span[]; after: Style } {
  const shown = overwritten(line);
  const cut = shown.length > LONGEST ? shown.slice(0, LONGEST) : shown;
  const found: Span[] = [];
  let style = begin;
  let start = 0;
  const add = (end: number) => {
    if (end > start) found.push({ text: plain(cut.slice(start, end)), style: classes(style) });
  };
  for (const match of cut.matchAll(ESCAPES)) {
    add(match.index);
    start = match.index + match[0].length;
    if ((match[2] ?? match[4]) === "m") style = changed(style, match[1] ?? match[3] ?? "");
  }
  add(cut.length);
  if (cut !== shown) found.push({ text: ` … ${shown.length - LONGEST} more characters`, style: "d" });
  return { spans: found, after: style };
}

const FLAGS: Record<number, string> = { 1: "b", 2: "d", 3: "i", 4: "u", 7: "r" };

function changed(style: Style, parameters: string): Style {
  let { flags, front, back } = style;
  const codes = parameters.split(/[;:]/, 32).map(Number);
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] || 0;
    if (code === 0) ({ flags, front, back } = PLAIN);
    else if (FLAGS[code]) flags = flags.includes(FLAGS[code]) ? flags : flags + FLAGS[code];
    else if (code === 22) flags = flags.replace(/[bd]/g, "");
    else if (code >= 23 && code <= 27) flags = flags.replace({ 23: "i", 24: "u", 27: "r" }[code] ?? " ", "");
    else if (code >= 30 && code <= 37) front = code - 30;
    else if (code >= 40 && code <= 47) back = code - 40;
    else if (code >= 90 && code <= 97) front = code - 82;
    else if (code >= 100 && code <= 107) back = code - 92;
    else if (code === 39) front = -1;
    else if (code === 49) back = -1;
    else if (code === 38 || code === 48) {
      const colour = codes[at + 1] === 5 ? palette(codes[at + 2] ?? 0) : nearest(codes.slice(at + 2, at + 5));
      at += codes[at + 1] === 5 ? 2 : 4;
      if (code === 38) front = colour;
      else back = colour;
    }
  }
  return flags === "" && front < 0 && back < 0 ? PLAIN : { flags, front, back };
}

/** The nearest of the 16 colours: those of a theme are readable, any others may not be. */
function palette(index: number): number {
  if (index < 16) return index;
  if (index >= 232) return index < 238 ? 8 : index < 250 ? 7 : 15;
  const cube = index - 16;
  return nearest([Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51]);
}

function nearest([red = 0, green = 0, blue = 0]: number[]): number {
  const most = Math.max(red, green, blue);
  if (most < 48) return 8;
  const half = most / 2;
  return (red > half ? 1 : 0) + (green > half ? 2 : 0) + (blue > half ? 4 : 0) + (most > 170 ? 8 : 0);
}

function classes({ flags, front, back }: Style): string {
  const parts = [...flags];
  if (front >= 0) parts.push(`f${front & 15}`);
  if (back >= 0) parts.push(`g${back & 15}`);
  return parts.join(" ");
}
