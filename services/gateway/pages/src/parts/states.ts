/** How states are shown: a colour, an icon and a word; never a colour alone. */

export type Tone = "good" | "warn" | "bad" | "wait" | "busy" | "idle";

/** Paths of icons in a square of 16. */
export const ICONS: Record<Tone, string> = {
  good: "M3.5 8.5l3 3 6-7",
  warn: "M8 2.5L14.5 13.5H1.5zM8 6.5v3.5M8 11.6v.4",
  bad: "M4 4l8 8M12 4l-8 8",
  wait: "M5.5 3.5v9M10.5 3.5v9",
  busy: "M5 3.5l7 4.5-7 4.5z",
  idle: "M8 3.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6",
};

const TONES: Record<string, Tone> = {
  completed: "good",
  granted: "good",
  merged: "good",
  healthy: "good",
  done: "good",
  failed: "bad",
  lost: "bad",
  denied: "bad",
  rejected: "bad",
  exceeded: "bad",
  conflict: "bad",
  conflicted: "bad",
  unavailable: "bad",
  warned: "warn",
  stopping: "warn",
  expired: "warn",
  cancelled: "warn",
  stuck: "warn",
  duplicate: "warn",
  dependency: "warn",
  paused: "wait",
  waiting: "wait",
  approval: "wait",
  running: "busy",
  spawning: "busy",
  assigned: "busy",
  pending: "idle",
  requested: "idle",
  terminated: "idle",
};

export function toneOf(state: string): Tone {
  return TONES[state] ?? "idle";
}
