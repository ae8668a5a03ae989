/** Texts of tasks that a list only names: a few are read at a time, each once. */

import { get, path } from "../api/client";

/** How many are read for one list. */
const NAMED = 8;

export class TaskTexts {
  texts = $state.raw<Readonly<Record<string, string>>>({});

  /** Read those of tasks that are not known; one that can't be read is left out. */
  async read(tasks: readonly string[]): Promise<void> {
    const missing = [...new Set(tasks.filter((task) => !(task in this.texts)))].slice(0, NAMED);
    const found = await Promise.allSettled(missing.map((task) => get<"get_task">(path("tasks", task))));
    const known = found.flatMap((one) => (one.status === "fulfilled" ? [[one.value.task, one.value.text ?? ""] as const] : []));
    if (known.length) this.texts = { ...this.texts, ...Object.fromEntries(known) };
  }
}
