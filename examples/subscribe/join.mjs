// Joins history and live without a gap, and folds states: node join.mjs PROJECT NAME TASK
//
// Reads the project's history, and then what is published from there on, by the durable subscription NAME, until TASK
// has ended. Writes the task's state whenever it changes, and what it waits for: a user's answer to an approval.
//
// NATS_URL              the broker's address
// SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
import { ask, open, read, reasonOf, subscribe } from "./herd.mjs";

const STATES = {
  "task.submitted": "pending",
  "task.assigned": "assigned",
  "task.running": "running",
  "task.retry_scheduled": "pending",
  "task.completed": "completed",
  "task.failed": "failed",
  "task.cancelled": "cancelled",
};
const ENDS = new Set(["completed", "failed", "cancelled"]);

// What follows from the events so far.
class Fold {
  states = new Map(); // by task
  sandboxes = new Map(); // by task: that of its attempt
  approvals = new Map(); // by sandbox: those without an answer, by their id
  #sources = new Map();

  // Apply an event when those before it of its source are applied; an event that was applied is ignored.
  add(event) {
    const source = this.#sources.get(event.source) ?? { next: 1, early: new Map() };
    this.#sources.set(event.source, source);
    if (event.sequence >= source.next) source.early.set(event.sequence, event);
    for (let following; (following = source.early.get(source.next)); source.next += 1) {
      source.early.delete(source.next);
      this.#apply(following);
    }
  }

  #apply({ type, subject, data }) {
    if (type in STATES) this.states.set(subject, STATES[type]);
    if (type === "task.assigned") this.sandboxes.set(subject, data.sandbox);
    if (!type.startsWith("approval.")) return;
    const pending = this.approvals.get(subject) ?? new Map();
    this.approvals.set(subject, pending);
    if (type === "approval.requested") pending.set(data.approval_id, data.tool);
    else pending.delete(data.approval_id); // granted, denied or expired
  }

  // What a running task waits for, or undefined.
  waitsFor(task) {
    const pending = this.approvals.get(this.sandboxes.get(task));
    if (this.states.get(task) !== "running" || !pending?.size) return undefined;
    const [[approval, tool]] = pending;
    return `approval ${approval} of ${tool}${pending.size > 1 ? `, and ${pending.size - 1} more` : ""}`;
  }
}

// Apply every stored event, page by page. Returns the sequence of the stream up to which all events are among them.
async function readHistory(connection, project) {
  let cursor, through;
  do {
    const page = await ask(connection, "events", project, { limit: 500, ...(cursor && { cursor }) });
    for (const stored of page.events) fold.add(stored.envelope);
    through ??= page.stored_through ?? 0; // only in the first page, and only if the broker replied
    cursor = page.events.length ? page.next_cursor : undefined;
  } while (cursor);
  return through;
}

const [project, name, task] = process.argv.slice(2);
const fold = new Fold();
let written = "";

// Whether the task has ended. Writes its state if it has changed.
function ended() {
  const state = fold.states.get(task);
  const waits = fold.waitsFor(task);
  const line = state && `${task} ${state}${waits ? `, waits for ${waits}` : ""}`;
  if (line && line !== written) console.log(line);
  written = line;
  return ENDS.has(state);
}

const connection = await open();
const through = await readHistory(connection, project);
const consumer = await subscribe(connection, project, name, through + 1);
try {
  if (!ended()) {
    for await (const message of await consumer.consume({ max_messages: 32, abort_on_missing_resource: true })) {
      const event = read(message);
      if (event) fold.add(event);
      message.ack();
      if (ended()) break;
    }
  }
  if (!ended()) throw new Error("no more events are received");
} catch (error) {
  console.error(await reasonOf(error, connection, consumer, name));
  process.exitCode = 1;
}
if (!connection.isClosed()) await connection.drain();
