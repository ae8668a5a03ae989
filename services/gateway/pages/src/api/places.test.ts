import { expect, it } from "vitest";
import { PLACES, PlacedStream } from "./places";

type Work = (lock: unknown) => unknown;

/** The locks of one browser, without one. */
function fakeLocks() {
  const held = new Set<string>();
  const waiting: { name: string; work: Work; signal: AbortSignal | undefined }[] = [];
  const enter = async (name: string, work: Work) => {
    held.add(name);
    await work({});
    held.delete(name);
    const next = waiting.findIndex((one) => one.name === name && !one.signal?.aborted);
    if (next >= 0) void enter(name, waiting.splice(next, 1)[0]!.work);
  };
  return {
    request: (async (name: string, options: LockOptions, work: Work) => {
      if (!held.has(name)) return enter(name, work);
      if (options.ifAvailable) return work(null);
      waiting.push({ name, work, signal: options.signal });
    }) as never,
  };
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

it("opens as many streams as there are places, and the next one when another is closed", async () => {
  const locks = fakeLocks();
  const log: string[] = [];
  const tab = (name: string) =>
    new PlacedStream(
      () => {
        log.push(`${name} opens`);
        return { close: () => void log.push(`${name} closes`) };
      },
      () => void log.push(`${name} waits`),
      locks,
    );
  const first = Array.from({ length: PLACES }, (_, number) => tab(`tab ${number}`));
  await settled();
  expect(log.splice(0).sort()).toEqual(first.map((_, number) => `tab ${number} opens`));
  const next = tab("next");
  const left = tab("left");
  const last = tab("last");
  await settled();
  expect(log.splice(0).sort()).toEqual(["last waits", "left waits", "next waits"]);
  first[0]!.reopen(() => ({ close: () => void log.push("again closes") }));
  await settled();
  expect(log.splice(0)).toEqual(["tab 0 closes"]);
  left.close();
  first[2]!.close();
  first[1]!.close();
  await settled();
  expect(log.splice(0).sort()).toEqual(["last opens", "next opens", "tab 1 closes", "tab 2 closes"]);
  for (const one of [next, last, first[0]!, first[3]!]) one.close();
  expect(log.splice(0).length).toBe(4);
  new PlacedStream(() => ({ close: () => undefined }), () => log.push("waits"), null);
  await settled();
  expect(log).toEqual([]);
});
