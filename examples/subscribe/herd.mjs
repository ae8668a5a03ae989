// What the programs here share: the connection, requests, and events in messages. It uses no code of Sandherd.
import { readFile } from "node:fs/promises";
import { jetstream, JetStreamApiCodes } from "@nats-io/jetstream";
import { connect, credsAuthenticator } from "@nats-io/transport-node";
import { HTTP } from "cloudevents";

const STRUCTURED = { "content-type": "application/cloudevents+json" };

// The credential permits replies on one prefix only, which contains its public key.
function inboxOf(credentials) {
  const claims = credentials.split("-----")[2].split(".")[1];
  return `_INBOX_${JSON.parse(Buffer.from(claims, "base64url")).sub}`;
}

export async function open() {
  const credentials = await readFile(process.env.SANDHERD_CREDENTIALS, "utf8");
  return connect({
    servers: process.env.NATS_URL.split(","),
    authenticator: credsAuthenticator(new TextEncoder().encode(credentials)),
    inboxPrefix: inboxOf(credentials),
    maxReconnectAttempts: -1,
  });
}

// The reply of event-ingest about a project.
export async function ask(connection, type, project, request) {
  const subject = `sandherd.v1.request.event-ingest.${type}.${project}`;
  const reply = (await connection.request(subject, JSON.stringify(request), { timeout: 30_000 })).json();
  if (reply.error) throw new Error(`${reply.error.message}; ${reply.error.remedy ?? ""}`);
  return reply.ok;
}

// The consumer of a subscription, which is created from `start` on; an existing one keeps its position.
export async function subscribe(connection, project, name, start) {
  const { stream, consumer } = await ask(connection, "subscribe", project, { name, start });
  // The streams are in another account, which clients reach as the JetStream domain `herd`.
  return jetstream(connection, { domain: "herd" }).consumers.get(stream, consumer);
}

// The event in a message, or undefined if it is not an event, or not the one that its subject names: the broker checks
// the subject only, and a sandbox can publish any bytes. Such a message is acknowledged, too, or it is redelivered.
export function read(message) {
  try {
    const event = HTTP.toEvent({ headers: STRUCTURED, body: message.string() });
    const subject = `sandherd.v1.event.${event.project}.${event.subject}.${event.type}`;
    if (message.subject !== subject) throw new Error(`the event belongs on ${subject}`);
    return event;
  } catch (error) {
    console.error(`not an event on ${message.subject}: ${error.message}`);
  }
}

// Why no more events are received. The broker reports a deletion only once, and not to a reader that is disconnected
// then, so the program looks for the consumer.
export async function reasonOf(error, connection, consumer, name) {
  if (connection.isClosed()) return "the broker closed the connection: the credential expired, or was revoked";
  const found = await consumer.info().catch((problem) => problem); // it, or why there is none
  return found.code === JetStreamApiCodes.ConsumerNotFound ? `the subscription ${name} was deleted` : error.message;
}
