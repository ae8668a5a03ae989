// Follows one project's events: node follow.mjs PROJECT NAME [COUNT]
//
// NAME is a durable subscription: events published while this program, or the broker, is not running are delivered
// later. Each event is one line of JSON on standard output, and is acknowledged once it is written. With COUNT the
// program ends after that number of events.
//
// NATS_URL              the broker's address
// SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
import { readFile } from "node:fs/promises";
import { jetstream } from "@nats-io/jetstream";
import { connect, credsAuthenticator } from "@nats-io/transport-node";
import { HTTP } from "cloudevents";

const [project, name, given = "Infinity"] = process.argv.slice(2);
const count = Number(given);
const STRUCTURED = { "content-type": "application/cloudevents+json" };

// The credential permits replies on one prefix only, which contains its public key.
function inboxOf(credentials) {
  const claims = credentials.split("-----")[2].split(".")[1];
  return `_INBOX_${JSON.parse(Buffer.from(claims, "base64url")).sub}`;
}

async function open() {
  const credentials = await readFile(process.env.SANDHERD_CREDENTIALS, "utf8");
  return connect({
    servers: process.env.NATS_URL.split(","),
    authenticator: credsAuthenticator(new TextEncoder().encode(credentials)),
    inboxPrefix: inboxOf(credentials),
    maxReconnectAttempts: -1,
  });
}

// Creates the subscription; an existing one keeps its position.
async function subscribe(connection) {
  const subject = `sandherd.v1.request.event-ingest.subscribe.${project}`;
  const reply = (await connection.request(subject, JSON.stringify({ name, start: "all" }))).json();
  if (reply.error) throw new Error(`${reply.error.message}; ${reply.error.remedy ?? ""}`);
  return reply.ok;
}

// The event in a message, or undefined if it is not an event, or not the one that its subject names: the broker checks
// the subject only, and a sandbox can publish any bytes. Such a message is acknowledged, too, or it is redelivered.
function read(message) {
  try {
    const event = HTTP.toEvent({ headers: STRUCTURED, body: message.string() });
    const subject = `sandherd.v1.event.${event.project}.${event.subject}.${event.type}`;
    if (message.subject !== subject) throw new Error(`the event belongs on ${subject}`);
    return event;
  } catch (error) {
    console.error(`not an event on ${message.subject}: ${error.message}`);
  }
}

// With COUNT, requests only what is still to be written: the broker redelivers what it sent in excess after 30 s only.
async function* received(consumer) {
  if (count === Infinity) yield* await consumer.consume({ max_messages: 32 });
  else while (seen < count) yield* await consumer.fetch({ max_messages: Math.min(32, count - seen) });
}

const connection = await open();
const { stream, consumer } = await subscribe(connection);
// The streams are in another account, which clients reach as the JetStream domain `herd`.
const subscription = await jetstream(connection, { domain: "herd" }).consumers.get(stream, consumer);
let seen = 0;
for await (const message of received(subscription)) {
  const event = read(message);
  if (event) {
    console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject, project: event.project }));
    seen += 1;
  }
  message.ack();
}
await connection.drain();
if (seen < count) throw new Error(`the subscription ${name} was deleted`);
