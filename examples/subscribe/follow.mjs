// Follows one project's events: node follow.mjs PROJECT NAME [COUNT]
//
// NAME is a durable subscription: what is said while this program, or the broker, is away comes later. Each event is
// one line of JSON on standard output, and is acknowledged when that is written; with COUNT it ends after so many.
//
// NATS_URL              where the broker is
// SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
import { readFile } from "node:fs/promises";
import { jetstream } from "@nats-io/jetstream";
import { connect, credsAuthenticator } from "@nats-io/transport-node";
import { HTTP } from "cloudevents";

const [project, name, count = "Infinity"] = process.argv.slice(2);
const STRUCTURED = { "content-type": "application/cloudevents+json" };

// Replies may come on one prefix only: the public key that the credential is made out to.
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

// Asks for the subscription; it is made if there is none, and keeps its place if there is.
async function subscribed(connection) {
  const subject = `sandherd.v1.request.event-ingest.subscribe.${project}`;
  const reply = (await connection.request(subject, JSON.stringify({ name, start: "all" }))).json();
  if (reply.error) throw new Error(`${reply.error.message}; ${reply.error.remedy ?? ""}`);
  return reply.ok;
}

// The event in a message; undefined for what is none, or is not what its subject says: a sandbox may say anything, and
// the broker has checked the subject alone. It is acknowledged, too, or it would come again for ever.
function read(message) {
  try {
    const event = HTTP.toEvent({ headers: STRUCTURED, body: message.string() });
    const subject = `sandherd.v1.event.${event.project}.${event.subject}.${event.type}`;
    if (message.subject !== subject) throw new Error(`it says that it is ${subject}`);
    return event;
  } catch (error) {
    console.error(`no event on ${message.subject}: ${error.message}`);
  }
}

const connection = await open();
const { stream, consumer } = await subscribed(connection);
// The streams are in an account of their own, which people reach as the domain `herd`.
const events = await (await jetstream(connection, { domain: "herd" }).consumers.get(stream, consumer)).consume({
  max_messages: 32,
});
let seen = 0;
for await (const message of events) {
  if (seen >= Number(count)) {
    message.nak(); // it came before we stopped: the next reader need not wait for it
    continue;
  }
  const event = read(message);
  if (event) {
    console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject, project: event.project }));
    seen += 1;
  }
  message.ack();
  if (seen >= Number(count)) events.stop();
}
await connection.drain();
if (seen < Number(count)) throw new Error(`the subscription ${name} is gone`);
