/** Times, durations, money and sizes as text. */

const UNITS: readonly (readonly [number, string])[] = [
  [86_400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

/** A duration with at most two units, such as `2 h 5 min`. */
export function duration(seconds: number): string {
  const total = Math.max(0, Math.floor(seconds));
  const index = UNITS.findIndex(([size]) => total >= size);
  if (index < 0) return "0 s";
  const [size, name] = UNITS[index]!;
  const next = UNITS[index + 1];
  const rest = next ? Math.floor((total % size) / next[0]) : 0;
  return `${Math.floor(total / size)} ${name}${rest && next ? ` ${rest} ${next[1]}` : ""}`;
}

/** A time relative to `now`, both in milliseconds. */
export function relative(time: number, now: number): string {
  const seconds = Math.round((now - time) / 1000);
  if (Math.abs(seconds) < 5) return "now";
  const unit = UNITS.find(([size]) => Math.abs(seconds) >= size)!;
  const text = `${Math.floor(Math.abs(seconds) / unit[0])} ${unit[1]}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

const EXACT = new Intl.DateTimeFormat("sv-SE", {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});

/** The exact time, in the zone of the browser. */
export function exact(time: number): string {
  return EXACT.format(time).replace(",", "");
}

/** Micro-dollars as dollars: cents, or more digits of small amounts. */
export function money(micro: number): string {
  const dollars = micro / 1_000_000;
  const digits = dollars !== 0 && Math.abs(dollars) < 0.01 ? 4 : 2;
  return `$${dollars.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

export function count(value: number): string {
  return value.toLocaleString("en");
}

/** A number of things: `1 file`, `2 files`. */
export function counted(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A size in bytes, in units of 1,024. */
export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB"];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** The first line of a text, without control characters and without characters that change the direction. */
export function line(text: string, longest = 200): string {
  const first = plain(text.trimStart().split("\n", 1)[0] ?? "");
  return first.length > longest ? `${first.slice(0, longest - 1)}…` : first;
}

// Those of `libs/sandherd/client/terminal_text.py`: controls, format characters, separators, fillers, tags, selectors.
const INVISIBLE = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u115f" +
    "\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufe00-\\ufe0d\\ufeff\\uffa0" +
    "\\ufff0-\\ufffc\\ufffe\\uffff\\u{110bd}\\u{110cd}\\u{13430}-\\u{1345f}\\u{16fe4}\\u{1bca0}-\\u{1bca3}\\u{1d159}" +
    "\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}\\ud800-\\udfff]",
  "gu",
);

/** A text without characters that are invisible or change its direction; line breaks and tabs stay. */
export function plain(text: string): string {
  return text.replace(INVISIBLE, "\ufffd");
}

/** An address that may be a link: http and https only; null for any other. */
export function safeLink(text: string | null | undefined): string | null {
  if (!text || !URL.canParse(text)) return null;
  const found = new URL(text);
  return (found.protocol === "https:" || found.protocol === "http:") && !found.username ? found.href : null;
}
