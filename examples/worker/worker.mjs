// A worker in Node.js, written from docs/workers.md: its names and its order are those of the guide.
import { spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import {
  appendFileSync, closeSync, existsSync, fsyncSync, openSync, readFileSync, rmSync, truncateSync, writeFileSync,
  writeSync,
} from "node:fs";
import { join as path } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { jetstream } from "@nats-io/jetstream";
import { createUser, fromSeed } from "@nats-io/nkeys";
import { connect as open, credsAuthenticator, jwtAuthenticator } from "@nats-io/transport-node";

const { SANDHERD_PROJECT: PROJECT, SANDHERD_SANDBOX_ID: SANDBOX, SANDHERD_STATE_DIR: STATE } = process.env;
const INBOX = `_INBOX_${SANDBOX}`; // replies are delivered on no other prefix
const RECOVERING = process.argv[2] === "--recover";
const CHUNK_BYTES = 131072;
const APPROVAL_SECONDS = 600;
const ENDED = ["agent.completed", "agent.failed"];

const now = () => new Date().toISOString();
/** The first characters of a text, none of them cut in two: JavaScript counts units of UTF-16. */
const start = (text, count) => [...text.slice(0, 2 * count)].slice(0, count).join("");
const state = (name) => path(STATE, name);

/** An id by RFC 9562: the history accepts no other version. */
function uuid7() {
  const bytes = Buffer.concat([Buffer.alloc(6), randomBytes(10)]);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString("hex").replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}

/** Append a line to a file of the state folder; it is on disk when this returns. */
function store(name, line) {
  const file = openSync(state(name), "a", 0o600);
  writeSync(file, `${line}\n`);
  fsyncSync(file);
  closeSync(file);
}

/** The complete lines of a file. One that was written in part was never sent: it is removed. */
function stored(name) {
  if (!existsSync(state(name))) return [];
  const content = readFileSync(state(name));
  const complete = content.subarray(0, content.lastIndexOf(10) + 1);
  truncateSync(state(name), complete.length);
  return complete.toString("utf8").split("\n").slice(0, -1);
}

function ownKey() {
  if (RECOVERING) rmSync(state("worker.nk"), { force: true }); // the key of a lost worker may have been revoked
  if (!existsSync(state("worker.nk"))) writeFileSync(state("worker.nk"), createUser().getSeed(), { mode: 0o600 });
  return new Uint8Array(readFileSync(state("worker.nk")));
}

/** Request a credential for this key. A refusal ends the worker: its sandbox has ended, or was replaced. */
async function join(seed) {
  const joiner = await open({
    servers: process.env.NATS_URL.split(","),
    authenticator: credsAuthenticator(readFileSync(process.env.SANDHERD_CREDENTIALS)),
    inboxPrefix: `${INBOX}-join`,
  });
  const wanted = { public_key: fromSeed(seed).getPublicKey(), fence: Number(process.env.SANDHERD_FENCE) };
  const subject = `sandherd.v1.request.spawner.credential.${PROJECT}.${SANDBOX}`;
  const reply = (await joiner.request(subject, JSON.stringify(wanted), { timeout: 5000 })).json();
  await joiner.close();
  if (reply.error) process.exit(4);
  return reply.ok;
}

const connect = (seed, grant) => open({
  servers: process.env.NATS_URL.split(","),
  authenticator: jwtAuthenticator(grant.jwt, seed),
  inboxPrefix: INBOX,
  maxReconnectAttempts: -1,
});

/** Publish until the broker has acknowledged; the same id each time, so the broker stores it once. */
async function send(broker, subject, payload, msgID) {
  for (;;) {
    try {
      return await jetstream(broker).publish(subject, payload, { msgID, timeout: 5000 });
    } catch {
      await sleep(500);
    }
  }
}

/** The events of this sandbox, and how many of them are acknowledged. */
class Spool {
  events = stored("events").map((line) => JSON.parse(line));
  acknowledged = existsSync(state("acknowledged")) ? Number(readFileSync(state("acknowledged"))) : 0;
  #waiting = [];

  #changed() {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  async #until(condition) {
    while (!condition()) await new Promise((resolve) => this.#waiting.push(resolve));
  }

  emit(type, data) {
    const event = {
      specversion: "1.0", id: uuid7(), source: `/sandherd/sandbox/${SANDBOX}`, type, subject: SANDBOX, time: now(),
      datacontenttype: "application/json", dataschema: `urn:sandherd:v1:${type}`, sequence: this.events.length + 1,
      project: PROJECT, sandboxid: SANDBOX, data,
    };
    if (process.env.SANDHERD_TASK_ID) event.taskid = process.env.SANDHERD_TASK_ID;
    if (process.env.TRACEPARENT) event.traceparent = process.env.TRACEPARENT;
    store("events", JSON.stringify(event));
    this.events.push(event);
    this.#changed();
  }

  has(...types) {
    return this.events.some((event) => types.includes(event.type));
  }

  /** Send one event after the other, each until it is acknowledged. */
  async publish(broker) {
    for (;;) {
      await this.#until(() => this.acknowledged < this.events.length);
      const event = this.events[this.acknowledged];
      await send(broker, `sandherd.v1.event.${PROJECT}.${SANDBOX}.${event.type}`, JSON.stringify(event), event.id);
      writeFileSync(state("acknowledged"), String(this.acknowledged + 1));
      this.acknowledged += 1;
      this.#changed();
    }
  }

  drained() {
    return this.#until(() => this.acknowledged === this.events.length);
  }
}

/** Store bytes as an artifact, and return the reference for an event. */
async function storeArtifact(broker, content) {
  const artifact = `art-${randomBytes(13).toString("hex")}`;
  const subject = `sandherd.v1.artifact.${PROJECT}.${SANDBOX}.${artifact}`;
  const chunks = Math.max(1, Math.ceil(content.length / CHUNK_BYTES));
  for (let index = 0; index < chunks; index += 1) {
    const chunk = content.subarray(index * CHUNK_BYTES, (index + 1) * CHUNK_BYTES);
    await send(broker, subject, chunk, `${artifact}-${index}`);
  }
  const sha256 = createHash("sha256").update(content).digest("hex");
  return { artifact, subject, size: content.length, sha256, chunks, media_type: "text/plain; charset=utf-8" };
}

/** The messages to the agent, and the approvals that it waits for. */
class Inbox {
  approvals = new Map();
  closed = RECOVERING;
  #delivered = new Set(stored("delivered"));

  constructor(spool) {
    this.spool = spool;
  }

  receive(request) {
    if (!request.reply) return;
    if (!request.data.length) return void request.respond();
    const message = request.json();
    request.respond(JSON.stringify({ message: message.message, outcome: "acknowledged", ...this.#handle(message) }));
  }

  /** What differs in the receipt from that of a message that the agent has. */
  #handle(message) {
    const identity = `${message.message_type}/${message.source ?? `${message.message}/${message.sent_at}`}`;
    if (this.#delivered.has(identity)) return {};
    if (this.closed) return { outcome: "rejected", reason: "the agent has ended", agent_gone: true };
    if (message.message_type === "approval" && !this.#decide(JSON.parse(message.content))) {
      return { outcome: "rejected", reason: "this approval is not pending" };
    }
    store("delivered", identity);
    this.#delivered.add(identity);
    const { message_type, content } = message;
    const content_length = [...content].length; // in characters, not in units of UTF-16
    this.spool.emit("agent.message_injected", { message_id: message.message, message_type, content, content_length });
    return {};
  }

  /** Pass an answer on; whether its approval was pending. An approval is answered once. */
  #decide({ approval_id, granted }) {
    const resolve = this.approvals.get(approval_id);
    this.approvals.delete(approval_id);
    resolve?.(granted);
    return resolve !== undefined;
  }

  async approved(tool, input) {
    const approval_id = `appr-${randomBytes(8).toString("hex")}`;
    const answered = new Promise((resolve) => this.approvals.set(approval_id, resolve));
    const limit = { timeout_seconds: APPROVAL_SECONDS, on_timeout: "deny" };
    this.spool.emit("agent.approval_requested", { approval_id, tool, input, ...limit });
    const granted = await Promise.race([answered, sleep(APPROVAL_SECONDS * 1000, false, { ref: false })]);
    this.approvals.delete(approval_id); // an answer from now on is rejected
    return granted;
  }
}

/** Run a program in the work folder, until it ends or the worker is stopped. */
async function run([program, ...words], signal) {
  const stdio = ["ignore", "pipe", "inherit"];
  const child = spawn(program, words, { cwd: process.env.SANDHERD_WORK_DIR, stdio, signal });
  const output = [];
  child.stdout.on("data", (piece) => output.push(piece));
  try {
    const [status] = await once(child, "close");
    return { status: status ?? 1, output: Buffer.concat(output) };
  } catch (error) { // it could not be started, or was stopped
    return { status: 127, output: Buffer.from(error.message) };
  }
}

async function work(spool, inbox, broker, signal) {
  const task = JSON.parse(readFileSync(process.env.SANDHERD_TASK_FILE, "utf8"));
  spool.emit("agent.started", {
    timestamp: now(), sdk: "example", attempt: Number(process.env.SANDHERD_ATTEMPT),
    task: start(task.text, 2000), task_description_length: [...task.text].length,
  });
  const { argv } = task.harness;
  if (!(await inbox.approved("run", { argv }))) {
    return spool.emit("agent.failed", { error: "it was not approved", error_type: "stopped" });
  }
  const { status, output } = await run(argv, signal);
  const text = output.toString("utf8").replaceAll("\0", "\ufffd"); // an event with NUL is not stored
  const final = { exit_code: status, final_output: start(text, 2000) };
  if (output.length > 2000) final.artifacts = { output: await storeArtifact(broker, output) };
  if (signal.aborted) return undefined;
  if (status === 0) return spool.emit("agent.completed", final);
  return spool.emit("agent.failed", { error: "the program failed", error_type: "exit_status", ...final });
}

function beat(spool) {
  const heartbeat = () => spool.emit("agent.heartbeat", {
    timestamp: now(), status: "running", spool_depth: spool.events.length - spool.acknowledged,
  });
  heartbeat();
  return setInterval(heartbeat, Number(process.env.HEARTBEAT_INTERVAL) * 1000);
}

async function finish(spool, error, error_type) {
  if (!spool.has(...ENDED)) spool.emit("agent.failed", { error, error_type });
  const reason = spool.has("agent.completed") ? "completed" : error_type;
  if (!spool.has("agent.shutdown")) spool.emit("agent.shutdown", { reason, timestamp: now() });
  await spool.drained();
}

async function main() {
  const spool = new Spool();
  const inbox = new Inbox(spool);
  const seed = ownKey();
  const grant = await join(seed);
  if (!grant.may_start && !RECOVERING) process.exit(7);
  const broker = await connect(seed, grant);
  broker.subscribe(`sandherd.v1.deliver.${PROJECT}.${SANDBOX}`, { callback: (_, request) => inbox.receive(request) });
  spool.publish(broker);
  if (!RECOVERING) {
    const stopping = new AbortController();
    process.on("SIGTERM", () => stopping.abort());
    const timer = beat(spool);
    const stopped = once(stopping.signal, "abort");
    await Promise.race([work(spool, inbox, broker, stopping.signal), stopped]);
    inbox.closed = true;
    clearInterval(timer);
  }
  await finish(spool, ...(RECOVERING ? ["the worker was lost", "worker_lost"] : ["stopped", "stopped"]));
  await broker.close();
  process.exit(0); // timers keep Node.js running
}

await main();
