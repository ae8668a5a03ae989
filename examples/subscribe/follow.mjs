// Follows one project's events: node follow.mjs PROJECT NAME [COUNT]
//
// NAME is a durable subscription: events published while this program, or the broker, is not running are delivered
// later. Each event is one line of JSON on standard output, and is acknowledged once it is written. With COUNT the
// program ends after that number of events. It ends with status 1 when the subscription is deleted.
//
// NATS_URL              the broker's address
// SANDHERD_CREDENTIALS  a subscriber's credential: sandherd credentials create --role subscriber --project PROJECT
import { open, read, reasonOf, subscribe } from "./herd.mjs";

const [project, name, given = "Infinity"] = process.argv.slice(2);
const count = Number(given);

// With COUNT, requests only what is still to be written: the broker redelivers what it sent in excess after 30 s only.
async function* received(consumer) {
  if (count === Infinity) yield* await consumer.consume({ max_messages: 32, abort_on_missing_resource: true });
  else while (seen < count) yield* await consumer.fetch({ max_messages: Math.min(32, count - seen) });
}

const connection = await open();
const consumer = await subscribe(connection, project, name, "all");
let seen = 0;
try {
  for await (const message of received(consumer)) {
    const event = read(message);
    if (event) {
      console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject, project: event.project }));
      seen += 1;
    }
    message.ack();
  }
  if (seen < count) throw new Error("no more events are received");
} catch (error) {
  console.error(await reasonOf(error, connection, consumer, name));
  process.exitCode = 1;
}
if (!connection.isClosed()) await connection.drain();
