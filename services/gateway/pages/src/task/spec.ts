/** The form of a new task, and what it becomes: a request, a file for `sandherd tasks submit`, a command line. */

import type { TaskBody } from "../api/schema";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Fields = { [name: string]: Json };

export interface Form {
  text: string;
  harness: string;
  model: string;
  program: string;
  runtime: string;
  profile: string;
  repository: string;
  base: string;
  pullRequest: string;
  files: { name: string; content: string }[];
  dependsOn: string;
  priority: string;
  attempts: string;
  attemptMinutes: string;
  memory: string;
  cores: string;
  ask: string;
  deny: string;
  cost: string;
  tokens: string;
  turns: string;
  labels: string;
  /** Fields of an earlier task that the form has no input for, such as its secrets by name: they are submitted, too. */
  further: Fields;
}

export const EMPTY: Form = {
  text: "", harness: "", model: "", program: "", runtime: "", profile: "", repository: "", base: "", pullRequest: "",
  files: [], dependsOn: "", priority: "normal", attempts: "", attemptMinutes: "", memory: "", cores: "", ask: "", deny: "",
  cost: "", tokens: "", turns: "", labels: "", further: {},
};

/** The words of a text: separated by spaces or commas. */
export function wordsOf(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** What is wrong, by the name of the field; nothing if the form can be submitted. */
export function problemsOf(form: Form): Partial<Record<keyof Form, string>> {
  const found: Partial<Record<keyof Form, string>> = {};
  if (!form.text.trim()) found.text = "Describe the task.";
  if (!form.harness) found.harness = "Choose the kind of agent.";
  if ((form.harness === "command" || form.harness === "acp") && !form.program.trim()) found.program = "Name the program that does the task.";
  if (form.repository && !/^https?:\/\/\S+$/.test(form.repository)) found.repository = "This is no address of a repository, such as https://host/owner/name.";
  for (const name of ["attempts", "attemptMinutes", "memory", "cores", "cost", "tokens", "turns"] as const) {
    if (form[name] && !(Number(form[name]) > 0)) found[name] = "This is no positive number.";
  }
  for (const label of wordsOf(form.labels)) if (!/^[^=]+=.+$/.test(label)) found.labels = "A label is KEY=VALUE.";
  return found;
}

/** A copy without empty values. */
function filled(fields: Record<string, Json | undefined>): Fields {
  const full = Object.entries(fields).filter(([, value]) => {
    if (value === undefined || value === null || value === "") return false;
    return typeof value !== "object" || Object.keys(value).length > 0;
  });
  return Object.fromEntries(full) as Fields;
}

function numeric(text: string, factor = 1): number | undefined {
  return text ? Math.round(Number(text) * factor) : undefined;
}

function harnessOf(form: Form): Fields {
  const tools = Object.fromEntries([
    ...wordsOf(form.ask).map((tool) => [tool, "ask"] as const),
    ...wordsOf(form.deny).map((tool) => [tool, "deny"] as const),
  ].filter(([tool]) => tool !== "*"));
  const otherwise = wordsOf(form.ask).includes("*") ? "ask" : wordsOf(form.deny).includes("*") ? "deny" : undefined;
  const approvals = filled({ tools, otherwise });
  if (form.harness === "command") return filled({ kind: "command", argv: argvOf(form.program) });
  if (form.harness === "acp") return filled({ kind: "acp", argv: argvOf(form.program), approvals });
  return filled({ kind: form.harness, model: form.model, approvals });
}

/** What a shell does itself: no program has these names. */
const OF_SHELL = /^(cd|export|source|\.|set|unset|ulimit|umask|eval|exec|trap|alias)$|=/;

/** A command of several words is a program with arguments; what only a shell can do is run by one. */
export function argvOf(program: string): string[] {
  const text = program.trim();
  if (!text) return [];
  const words = text.split(/ +/);
  if (/^[\w@%+=:,./ -]+$/.test(text) && !OF_SHELL.test(words[0] ?? "")) return words;
  return ["sh", "-c", text];
}

/** What an earlier task had beyond the inputs, as far as it fits: options belong to one kind of agent. */
function furtherOf({ further, harness, repository }: Form): Fields {
  const { harness: options, repository: choices, ...rest } = further;
  const fits = isPart(options) && options["kind"] === harness;
  return filled({ ...rest, harness: fits ? options : undefined, repository: repository ? choices : undefined });
}

/** Both, where the second has a field in both. */
function merged(further: Fields, fields: Fields): Fields {
  const found: Fields = { ...further };
  for (const [name, value] of Object.entries(fields)) {
    const before = further[name];
    found[name] = isPart(before) && isPart(value) ? merged(before, value) : value;
  }
  return found;
}

export function isPart(value: Json | undefined): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The request that submits the task. */
export function specOf(form: Form): TaskBody {
  const fields = filled({
    text: form.text.trim(),
    harness: harnessOf(form),
    runtime: form.runtime,
    profile: form.profile,
    repository: filled({ url: form.repository, base: form.base, pull_request: filled({ open: form.pullRequest }) }),
    files: Object.fromEntries(form.files.map(({ name, content }) => [name, content])),
    depends_on: wordsOf(form.dependsOn),
    priority: form.priority === "normal" ? undefined : form.priority,
    retry: filled({ max_attempts: numeric(form.attempts) }),
    attempt_seconds: numeric(form.attemptMinutes, 60),
    limits: filled({ memory_mb: numeric(form.memory), cores: form.cores ? Number(form.cores) : undefined }),
    budget: filled({ cost_micro_usd: numeric(form.cost, 1_000_000), tokens: numeric(form.tokens), turns: numeric(form.turns) }),
    labels: Object.fromEntries(wordsOf(form.labels).map((label) => label.split(/=(.*)/s).slice(0, 2) as [string, string])),
  });
  return merged(furtherOf(form), fields) as unknown as TaskBody;
}

/** The form of an earlier task that has no record any more, from its view and its event `task.submitted`. What they do not have stays empty. */
export function formOf(task: Fields, submitted: Fields): Form {
  const text = (name: string, from: Fields = task) => (typeof from[name] === "string" ? (from[name] as string) : "");
  const labels = Object.entries((submitted["labels"] ?? {}) as Fields).filter(([name]) => !name.startsWith("sandherd/"));
  return {
    ...EMPTY,
    text: text("task", submitted) || text("text"),
    harness: text("harness"),
    runtime: text("runtime"),
    profile: text("profile"),
    repository: /^https?:/.test(text("repository")) ? text("repository") : "",
    priority: text("priority") || "normal",
    dependsOn: (Array.isArray(submitted["depends_on"]) ? submitted["depends_on"] : []).join(" "),
    attempts: Number(task["max_attempts"] ?? 1) > 1 ? String(task["max_attempts"]) : "",
    labels: labels.map(([name, value]) => `${name}=${String(value)}`).join(" "),
  };
}

/** A file for `sandherd tasks submit`. Tasks of the herd that it depends on are in `after`. */
export function yamlOf(spec: TaskBody): string {
  const { depends_on, ...rest } = spec as unknown as Fields;
  const task: Fields = depends_on ? { ...rest, after: depends_on } : rest;
  return `tasks:\n  - ${yaml(task, 4).trimStart()}\n`;
}

export function yaml(value: Fields, indent: number): string {
  const space = " ".repeat(indent);
  return Object.entries(value)
    .map(([name, one]) => {
      const key = /^[A-Za-z_][\w-]*$/.test(name) ? name : JSON.stringify(name);
      if (one !== null && typeof one === "object" && !Array.isArray(one)) return `${space}${key}:\n${yaml(one, indent + 2)}`;
      return `${space}${key}: ${scalar(one)}`;
    })
    .join("\n");
}

/** JSON is YAML: a text in double quotes has no other meaning. */
function scalar(value: Json): string {
  return Array.isArray(value) ? `[${value.map(scalar).join(", ")}]` : JSON.stringify(value);
}

export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The command line for the same task. Files are named as if they were in the current folder. */
export function commandOf(form: Form): string {
  const options: [string, string][] = [
    ["--harness", form.harness === "command" ? "" : form.harness],
    ["--model", form.harness === "command" || form.harness === "acp" ? "" : form.model],
    ["--runtime", form.runtime],
    ["--profile", form.profile],
    ["--repo", form.repository],
    ["--base", form.repository ? form.base : ""],
    ["--pr", form.repository ? form.pullRequest : ""],
    ...form.files.map(({ name }): [string, string] => ["--file", name]),
    ...wordsOf(form.dependsOn).map((task): [string, string] => ["--depends-on", task]),
    ["--priority", form.priority === "normal" ? "" : form.priority],
    ["--attempts", form.attempts],
    ["--attempt-timeout", form.attemptMinutes ? `${form.attemptMinutes}m` : ""],
    ["--memory", form.memory ? `${form.memory}m` : ""],
    ["--cores", form.cores],
    ...(form.harness === "command" ? [] : wordsOf(form.ask).map((tool): [string, string] => ["--ask", tool])),
    ...(form.harness === "command" ? [] : wordsOf(form.deny).map((tool): [string, string] => ["--deny", tool])),
    ["--budget", budgetOf(form)],
    ...wordsOf(form.labels).map((label): [string, string] => ["--label", label]),
  ];
  const shown = options.filter(([, value]) => value).map(([name, value]) => `${name} ${quoted(value)}`);
  const program = form.harness === "command" || form.harness === "acp" ? ["--", ...argvOf(form.program).map(quoted)] : [];
  return ["sandherd run", quoted(form.text.trim()), ...shown, ...program].join(" ");
}

function budgetOf(form: Form): string {
  const parts = [form.cost && `cost=${form.cost}usd`, form.tokens && `tokens=${form.tokens}`, form.turns && `turns=${form.turns}`];
  return parts.filter(Boolean).join(",");
}
