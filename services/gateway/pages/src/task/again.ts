/** The form of an earlier task: what was submitted, as far as it is stored and can be submitted again. */

import { argvOf, EMPTY, type Fields, type Form, isPart, type Json, quoted } from "./spec";

/** What belongs to the earlier task alone. */
const OWN = ["work", "resume", "inputs", "deadline"];
/** What the form has inputs for. */
const INPUTS = new Set([
  "text", "files", "depends_on", "labels", "runtime", "profile", "priority", "attempt_seconds", "secret_env", "sealed",
  "harness.model", "harness.argv", "repository.url", "repository.base", "repository.pull_request.open",
  "repository.bundle", "retry.max_attempts", "limits.memory_mb", "limits.cores", "budget.cost_micro_usd", "budget.tokens",
  "budget.turns", ...OWN,
]);

export interface Again {
  form: Form;
  /** What has to be added again: values of secrets, and what is not stored. */
  missing: string[];
}

function part(spec: Fields, ...names: string[]): Fields {
  let found: Json | undefined = spec;
  for (const name of names) found = isPart(found) ? found[name] : undefined;
  return isPart(found) ? found : {};
}

/** The fields without an input, also those of parts. */
function furtherOf(spec: Fields, left: (path: string, value: Json) => boolean, path = ""): Fields {
  const found: Fields = {};
  for (const [name, value] of Object.entries(spec)) {
    const own = `${path}${name}`;
    if (value === null || !left(own, value)) continue;
    const inner = isPart(value) ? furtherOf(value, left, `${own}.`) : value;
    if (!isPart(inner) || Object.keys(inner).length) found[name] = inner;
  }
  return found;
}

function text(value: Json | undefined): string {
  return value === undefined || value === null ? "" : String(value);
}

function divided(value: Json | undefined, divisor: number): string {
  return typeof value === "number" ? String(value / divisor) : "";
}

function words(value: Json | undefined): string[] {
  return Array.isArray(value) ? value.map(text) : [];
}

/** The text of a program, which becomes these arguments again, or a shell with the same effect. */
function programOf(argv: string[]): string {
  const script = argv[0] === "sh" && argv[1] === "-c" && argv.length === 3 ? argv[2]! : "";
  const isSame = (one: string) => JSON.stringify(argvOf(one)) === JSON.stringify(argv);
  return [script, argv.join(" ")].find((one) => one && isSame(one)) ?? argv.map(quoted).join(" ");
}

/** The tools that an agent asks for, or may not use; `*` for all others. */
function toolsOf(spec: Fields, mode: string): string {
  const approvals = part(spec, "harness", "approvals");
  const named = Object.entries(part(approvals, "tools")).filter(([, one]) => one === mode).map(([tool]) => tool);
  return [...named, ...(approvals["otherwise"] === mode ? ["*"] : [])].join(" ");
}

/** A document has no defaults: a harness without a kind is a command. */
function withKind(spec: Fields): Fields {
  const harness = part(spec, "harness");
  return Object.keys(harness).length ? { ...spec, harness: { kind: "command", ...harness } } : spec;
}

function missingOf(spec: Fields, isRemote: boolean): string[] {
  const files = Object.entries(part(spec, "files")).filter(([, content]) => content === "").map(([name]) => `the file ${name}`);
  const local = !isRemote && Object.keys(part(spec, "repository")).length ? ["its local repository"] : [];
  const own = OWN.filter((name) => Object.keys(Object(spec[name] ?? [])).length || typeof spec[name] === "string");
  return [...words(spec["secret_env"]).map((name) => `the value of ${name}`), ...files, ...local, ...own.map((name) => `its ${name}`)];
}

export function againOf(submitted: Fields): Again {
  const spec = withKind(submitted);
  const kind = text(part(spec, "harness")["kind"]);
  const repository = part(spec, "repository");
  const isRemote = /^https?:/.test(text(repository["url"]));
  const secret = new Set(words(spec["secret_env"]).map((name) => `env.${name}`));
  const isLeft = (path: string, value: Json) => {
    if (INPUTS.has(path) || secret.has(path) || (path === "repository" && !isRemote)) return false;
    return !(/^harness\.approvals\.(tools\.|otherwise$)/.test(path) && (value === "ask" || value === "deny"));
  };
  const form: Form = {
    ...EMPTY,
    text: text(spec["text"]),
    harness: kind,
    model: text(part(spec, "harness")["model"]),
    program: programOf(words(part(spec, "harness")["argv"])),
    runtime: text(spec["runtime"]),
    profile: text(spec["profile"]),
    repository: isRemote ? text(repository["url"]) : "",
    base: isRemote ? text(repository["base"]) : "",
    pullRequest: isRemote ? text(part(repository, "pull_request")["open"]) : "",
    files: Object.entries(part(spec, "files")).filter(([, content]) => content !== "").map(([name, content]) => ({ name, content: text(content) })),
    dependsOn: words(spec["depends_on"]).join(" "),
    priority: text(spec["priority"]) || "normal",
    attempts: text(part(spec, "retry")["max_attempts"]),
    attemptMinutes: divided(spec["attempt_seconds"], 60),
    memory: text(part(spec, "limits")["memory_mb"]),
    cores: text(part(spec, "limits")["cores"]),
    ask: toolsOf(spec, "ask"),
    deny: toolsOf(spec, "deny"),
    cost: divided(part(spec, "budget")["cost_micro_usd"], 1_000_000),
    tokens: text(part(spec, "budget")["tokens"]),
    turns: text(part(spec, "budget")["turns"]),
    labels: Object.entries(part(spec, "labels")).filter(([name]) => !name.startsWith("sandherd/")).map(([name, value]) => `${name}=${text(value)}`).join(" "),
    further: furtherOf(spec, isLeft),
  };
  if (Object.keys(part(form.further, "harness")).length === 1) delete form.further["harness"]; // its kind only
  return { form, missing: missingOf(spec, isRemote) };
}
