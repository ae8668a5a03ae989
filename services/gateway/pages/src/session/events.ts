/** What each type of event adds to the timeline of a session. Everything in an event of a sandbox is hostile text. */

import type { Envelope } from "../api/live";
import { line, plain } from "../parts/format";
import type { Tone } from "../parts/states";
import { bare } from "../parts/terminal";

/** An event as lists have it. */
export interface StoredEvent {
  stream_sequence: number;
  envelope: Envelope;
}

export type Kind =
  | "turn"
  | "text"
  | "thinking"
  | "input"
  | "call"
  | "file"
  | "finding"
  | "steering"
  | "approval"
  | "state"
  | "error"
  | "other";

export interface FileChange {
  sequence: number;
  path: string;
  change: string;
  added: number;
  removed: number;
  binary: boolean;
}

/** One event as a part of a row: which row, what the row is, and what the event changes. */
export interface Piece {
  /** The row that several events share, such as a call and its result; empty: a row of its own. */
  group: string;
  kind: Kind;
  title: string;
  text: string;
  tone: Tone;
  /** The state that the row is in after this event; empty: unchanged. */
  state: string;
  /** How long it took, in milliseconds, where the event states it. */
  duration: number | null;
  file: FileChange | null;
  nested: boolean;
}

type Data = Record<string, unknown>;
type Reader = (data: Data, type: string) => Partial<Piece> & { kind: Kind };

/** The longest text that a row shows before the whole event is read. */
export const SHOWN = 1_200;
const TITLE = 240;
/** The arguments by which calls are recognised, the best first. */
const ARGUMENTS = ["command", "file_path", "path", "pattern", "query", "url", "description", "prompt", "content", "text"];

/** A field of an event as a text: never an object's default text. */
export function text(value: unknown, longest = SHOWN): string {
  if (value === null || value === undefined) return "";
  const whole = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return whole.length > longest ? `${whole.slice(0, longest - 1)}…` : whole;
}

function number(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0;
}

function milliseconds(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** A call in one line: its tool, and the argument by which it is recognised. */
export function callTitle(tool: unknown, input: unknown): string {
  const given = (input ?? {}) as Data;
  const name = ARGUMENTS.find((key) => typeof given[key] === "string" && given[key] !== "");
  const shown = name ? given[name] : Object.keys(given).length ? given : "";
  return line(`${text(tool, 80)} ${text(shown, TITLE)}`.trim(), TITLE);
}

const call = (data: Data) => `call ${text(data["tool_use_id"], 200)}`;
const message = (data: Data) => `message ${text(data["message_id"], 200)}`;
const approval = (data: Data) => `approval ${text(data["approval_id"], 200)}`;
const finding = (data: Data) => (data["finding_id"] ? `finding ${text(data["finding_id"], 80)}` : "");

const callEnd: Reader = (data) => {
  const outcome = text(data["outcome"], 20) || "done";
  const failed = data["is_error"] === true || number(data["exit_code"]) !== 0 || (outcome !== "ok" && outcome !== "done");
  return {
    kind: "call",
    group: data["tool_use_id"] ? call(data) : "",
    title: line(`${text(data["tool"], 80) || text(data["subagent_type"] ?? data["skill_name"], 80)} result`.trim()),
    state: failed ? (outcome === "ok" || outcome === "done" ? "failed" : outcome.replace("_", " ")) : "done",
    tone: failed ? "bad" : "good",
    duration: milliseconds(data["duration_ms"] ?? data["subagent_duration_ms"]),
    text: failed ? text(data["result"], 300) : "",
  };
};

function delivery(state: string, tone: Tone): Reader {
  return (data) => ({
    kind: "input",
    group: message(data),
    title: title(data["message_type"], data["sender_id"]),
    state,
    tone,
    text: text(data["reason"], 300),
  });
}

function title(type: unknown, sender: unknown): string {
  const kind = { user_message: "message", guardian_nudge: "nudge", interrupt: "interrupt", system: "note", approval: "answer" };
  const name = kind[text(type) as keyof typeof kind] ?? text(type, 60);
  return line(sender ? `${name} from ${text(sender, 100)}` : name);
}

function decided(state: string, tone: Tone): Reader {
  return (data) => ({ kind: "approval", group: approval(data), title: line(text(data["reason"]) || "approval"), state, tone });
}

function ended(tone: Tone): Reader {
  return (data, type) => ({
    kind: tone === "bad" ? "error" : "state",
    title: type === "agent.completed" ? "the agent has completed its work" : "the agent has failed",
    text: text(data["error"] ?? data["final_output"]),
    state: type === "agent.completed" ? "completed" : "failed",
    tone,
    duration: data["duration_seconds"] ? number(data["duration_seconds"]) * 1000 : null,
  });
}

const found: Reader = (data, type) => ({
  kind: "finding",
  group: finding(data),
  title: line(`${text(data["rule"], 60) || name(type)}: ${findingText(data)}`, TITLE),
  state: "found",
  tone: "warn",
});

function findingText(data: Data): string {
  if (data["summary"]) return text(data["summary"]);
  if (data["file_path"]) return `${text(data["file_path"])} with ${text(data["other"])}`;
  if (data["other"]) return `the same as ${text(data["other"])}`;
  if (data["changed"]) return `${text(data["changed"])} has changed`;
  if (data["age_seconds"]) return `for ${Math.round(number(data["age_seconds"]))} s, the limit is ${number(data["limit_seconds"])} s`;
  return text(data["verdict"] ?? data["failure"] ?? data["budget"]);
}

function name(type: string): string {
  return type.slice(type.indexOf(".") + 1).replaceAll("_", " ");
}

const READERS: Record<string, Reader> = {
  "agent.turn_started": (data) => ({
    kind: "turn",
    group: `turn ${number(data["turn"])}`,
    title: `Turn ${number(data["turn"])}`,
    text: text(data["prompt_preview"], 300),
    state: "running",
    tone: "busy",
  }),
  "agent.turn_completed": (data) => ({
    kind: "turn",
    group: `turn ${number(data["turn"])}`,
    title: `Turn ${number(data["turn"])}`,
    state: "done",
    tone: "good",
    duration: milliseconds(data["duration_ms"]),
  }),
  "agent.message": (data) => ({ kind: "text", title: "agent", text: text(data["content"]) }),
  "agent.thinking": (data) => ({ kind: "thinking", title: line(text(data["content"]), TITLE) }),
  "agent.user_message": (data) => ({ kind: "input", title: "input", text: text(data["content"]) }),
  "agent.message_injected": (data) => ({
    kind: "input",
    group: message(data),
    title: title(data["message_type"], data["sender_id"]),
    text: text(data["content"]),
    state: "received",
    tone: "good",
  }),
  "agent.message_sent": (data) => ({ kind: "text", title: line(`to ${text(data["recipient"], 100)}`), text: text(data["content"]) }),
  "message.queued": delivery("queued", "wait"),
  "message.delivered": delivery("delivered", "wait"),
  "message.acknowledged": delivery("received", "good"),
  "message.expired": delivery("expired", "bad"),
  "message.rejected": delivery("rejected", "bad"),
  "message.refused": (data) => ({ kind: "error", title: line(`message refused: ${text(data["reason"])}`, TITLE), tone: "bad" }),
  "agent.tool_use": (data) => ({ kind: "call", group: call(data), title: callTitle(data["tool"], data["input"]), state: "running", tone: "busy" }),
  "agent.subagent_invoked": (data) => ({
    kind: "call",
    group: call(data),
    title: line(`sub-agent ${text(data["subagent_type"], 60)}: ${text(data["subagent_description"])}`, TITLE),
    state: "running",
    tone: "busy",
  }),
  "agent.skill_invoked": (data) => ({ kind: "call", group: call(data), title: line(`skill ${text(data["skill_name"], 100)}`), state: "running", tone: "busy" }),
  "agent.tool_result": callEnd,
  "agent.tool_completed": callEnd,
  "agent.subagent_completed": callEnd,
  "agent.skill_completed": callEnd,
  "agent.exec_started": (data) => ({ kind: "call", group: `exec ${text(data["exec_id"], 100)}`, title: callTitle("exec", { command: Array.isArray(data["command"]) ? data["command"].join(" ") : "" }), state: "running", tone: "busy" }),
  "agent.exec_completed": (data) => ({ ...callEnd(data, ""), group: `exec ${text(data["exec_id"], 100)}`, title: "exec" }),
  "agent.approval_requested": (data) => ({ kind: "approval", group: approval(data), title: callTitle(data["tool"], data["input"]), text: text(data["reason"]), state: "pending", tone: "wait" }),
  "approval.requested": (data) => ({ kind: "approval", group: approval(data), title: line(text(data["tool"], 100)), text: text(data["reason"]), state: "pending", tone: "wait" }),
  "approval.granted": decided("granted", "good"),
  "approval.denied": decided("denied", "bad"),
  "approval.expired": decided("expired", "warn"),
  "agent.approval_withdrawn": decided("withdrawn", "idle"),
  "agent.error": (data) => ({ kind: "error", title: line(text(data["error"]), TITLE), tone: "bad" }),
  "agent.stream_error": (data) => ({ kind: "error", title: line(text(data["error"]), TITLE), tone: "bad" }),
  "agent.interrupted": (data) => ({ kind: "state", title: line(`interrupted: ${text(data["reason"])}`, TITLE), tone: "warn" }),
  "agent.waiting": () => ({ kind: "state", title: "the agent waits for a message", tone: "wait" }),
  "agent.started": (data) => ({ kind: "state", title: line(`started: ${text(data["sdk"], 60)}${data["model"] ? `, ${text(data["model"], 80)}` : ""}`), text: text(data["task"]), tone: "busy" }),
  "agent.completed": ended("good"),
  "agent.failed": ended("bad"),
  "agent.context_compacted": (data) => ({ kind: "state", title: `context summarised: ${number(data["tokens_before"])} to ${number(data["tokens_after"])} tokens` }),
  "monitor.intervention_decided": (data) => ({
    kind: "steering",
    group: `steering ${text(data["correlation_id"], 200)}`,
    title: line(`${text(data["step"], 40)} for ${text(data["rule"], 40)}`),
    text: text(data["message"]),
    state: "pending",
    tone: "warn",
  }),
  "monitor.intervention_outcome": (data) => ({
    kind: "steering",
    group: `steering ${text(data["correlation_id"], 200)}`,
    title: "intervention",
    state: data["recovered"] === true ? "recovered" : text(data["outcome"], 40),
    tone: data["outcome"] === "ignored" || data["outcome"] === "undelivered" ? "bad" : "good",
  }),
  "monitor.finding_withdrawn": (data) => ({ kind: "finding", group: finding(data), title: line(`finding withdrawn: ${text(data["reason"])}`), state: "withdrawn", tone: "idle" }),
  "monitor.rule_muted": (data) => ({ kind: "steering", title: line(`${text(data["rule"], 60)} muted by ${text(data["muted_by"], 100)}`), state: "muted" }),
  "monitor.rule_unmuted": (data) => ({ kind: "steering", title: line(`${text(data["rule"], 60)} unmuted by ${text(data["unmuted_by"], 100)}`), state: "unmuted" }),
  "monitor.notification_published": (data) => ({ kind: "finding", title: line(text(data["message"]), TITLE), tone: "warn" }),
};

/** Types without a row: signs of life, parts of other events, and what only sums use. */
const QUIET = new Set([
  "agent.heartbeat",
  "agent.model_call_started",
  "agent.model_call_completed",
  "agent.assistant_message",
  "agent.system_message",
  "agent.user_tool_result",
  "agent.usage",
]);

/** A text as a terminal would show it: output of programs has escape sequences. */
function shownText(text: string): string {
  return /[\u001b\r]/.test(text) ? text.split("\n").map(bare).join("\n") : plain(text);
}

/** What an event adds to the timeline, or null if it has no row there. */
export function pieceOf(event: StoredEvent): Piece | null {
  const { type, data: found } = event.envelope;
  if (QUIET.has(type)) return null;
  const data = (found ?? {}) as Data;
  const read = type === "agent.file_edited" ? edit(event, data) : (READERS[type] ?? other)(data, type);
  return {
    group: "",
    tone: "idle",
    duration: null,
    file: null,
    nested: typeof data["parent_tool_use_id"] === "string",
    ...read,
    title: line(read.title ?? "", 2 * TITLE),
    text: shownText(read.text ?? ""),
    state: line(read.state ?? "", 40),
  };
}

function edit(event: StoredEvent, data: Data): Partial<Piece> & { kind: Kind } {
  const path = line(text(data["file_path"], 400), 400);
  const file = {
    sequence: event.stream_sequence,
    path,
    change: text(data["change_type"], 20),
    added: number(data["lines_added"]),
    removed: number(data["lines_removed"]),
    binary: data["binary"] === true,
  };
  return { kind: "file", group: data["tool_use_id"] ? call(data) : "", title: `${file.change} ${path}`, file };
}

function other(data: Data, type: string): Partial<Piece> & { kind: Kind } {
  // By name, so that it also applies to types of newer versions.
  const bad = /failed|refused|rejected|error|conflicted/.test(type);
  const domain = type.split(".", 1)[0];
  if (domain === "monitor" && !bad) return found(data, type);
  const detail = text(data["reason"] ?? data["error"] ?? data["branch"] ?? data["message"], TITLE);
  const title = line(`${domain === "agent" ? "" : `${domain} `}${name(type)}${detail ? `: ${detail}` : ""}`, TITLE);
  return { kind: bad ? "error" : domain === "sandbox" || domain === "task" ? "state" : "other", title, tone: bad ? "bad" : "idle" };
}
