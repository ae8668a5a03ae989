// Follows one project's events: node follow.mjs PROJECT NAME [COUNT]
//
// NAME is a durable subscription: events published while this program, or the broker, is not running are delivered
// later. Each event is one line of JSON on standard output, and is acknowledged once it is written. With COUNT the
// program ends after that number of events. It ends with status 1 when the subscription is deleted.
//
// NATS_URL              the broker's address
// SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
import { readFile } from "node:fs/promises";
import { jetstream, JetStreamApiCodes } from "@nats-io/jetstream";
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
  if (count === Infinity) yield* await consumer.consume({ max_messages: 32, abort_on_missing_resource: true });
  else while (seen < count) yield* await consumer.fetch({ max_messages: Math.min(32, count - seen) });
}

// Why no more events are received. The broker reports a deletion only once, and not to a reader that is disconnected
// then, so the program looks for the consumer.
async function reasonOf(error, consumer) {
  if (connection.isClosed()) return "the broker closed the connection: the credential expired, or was revoked";
  const found = await consumer.info().catch((problem) => problem); // it, or why there is none
  return found.code === JetStreamApiCodes.ConsumerNotFound ? `the subscription ${name} was deleted` : error.message;
}

const connection = await open();
const { stream, consumer } = await subscribe(connection);
// The streams are in another account, which clients reach as the JetStream domain `herd`.
const subscription = await jetstream(connection, { domain: "herd" }).consumers.get(stream, consumer);
let seen = 0;
try {
  for await (const message of received(subscription)) {
    const event = read(message);
    if (event) {
      console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject, project: event.project }));
      seen += 1;
    }
    message.ack();
  }
  if (seen < count) throw new Error("no more events are received");
} catch (error) {
  console.error(await reasonOf(error, subscription));
  process.exitCode = 1;
}
if (!connection.isClosed()) await connection.drain();
