import { expect, it } from "vitest";
import type { Listener, LiveEvent } from "./live";
import { SharedStream, type Tabs } from "./shared";

/** Locks and channels of one browser, without one. */
function fakeBrowser(): Tabs {
  const waiting: (() => unknown)[] = [];
  const channels = new Set<{ onmessage: ((event: MessageEvent) => void) | null }>();
  let held = false;
  const grant = () => {
    const next = held ? undefined : waiting.shift();
    if (!next) return;
    held = true;
    void Promise.resolve(next()).then(() => {
      held = false;
      grant();
    });
  };
  return {
    locks: {
      request: (async (_name: string, options: LockOptions, work: () => unknown) => {
        const entry = () => (options.signal?.aborted ? undefined : work());
        waiting.push(entry);
        grant();
      }) as never,
    },
    channel() {
      const own = {
        onmessage: null as ((event: MessageEvent) => void) | null,
        postMessage(data: unknown) {
          for (const other of channels) if (other !== own) other.onmessage?.({ data: structuredClone(data) } as MessageEvent);
        },
        close: () => void channels.delete(own),
      };
      channels.add(own);
      return own;
    },
  };
}

const event = (sequence: number): LiveEvent => ({ type: "agent.message", position: `e-${sequence}`, sequence, envelope: {} as never });
const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

it("reads once for all tabs, and continues in another tab without a gap", async () => {
  const tabs = fakeBrowser();
  const opened: { listener: Listener; after: string; open: boolean }[] = [];
  const open = (listener: Listener, after: string) => {
    const one = { listener, after, open: true };
    opened.push(one);
    return { close: () => void (one.open = false) };
  };
  const logs: string[][] = [[], [], []];
  const tab = (log: string[]) =>
    new SharedStream(
      "s",
      {
        event: ({ sequence }) => log.push(`event ${sequence}`),
        ready: (position) => log.push(`ready ${position}`),
        resync: (position) => log.push(`resync ${position}`),
        state: (state) => log.push(state),
      },
      open,
      tabs,
    );
  const first = tab(logs[0]!);
  const second = tab(logs[1]!);
  await settled();
  expect(opened.map(({ after }) => after)).toEqual([""]);
  opened[0]!.listener.state?.("live");
  opened[0]!.listener.ready?.("e-4");
  opened[0]!.listener.event?.(event(5));
  const third = tab(logs[2]!);
  await settled();
  opened[0]!.listener.event?.(event(6));
  expect(logs).toEqual([
    ["live", "ready e-4", "event 5", "event 6"],
    ["live", "ready e-4", "event 5", "event 6"],
    ["ready e-5", "live", "event 6"],
  ]);
  first.close();
  await settled();
  expect(opened.map(({ after, open }) => [after, open])).toEqual([["", false], ["e-6", true]]);
  opened[1]!.listener.event?.(event(6));
  opened[1]!.listener.event?.(event(7));
  opened[1]!.listener.resync?.("f-2");
  opened[1]!.listener.event?.({ ...event(3), position: "f-3" });
  opened[1]!.listener.state?.("signed-out");
  for (const log of logs.slice(1)) expect(log.slice(-4)).toEqual(["event 7", "resync f-2", "event 3", "signed-out"]);
  expect(logs[0]!.at(-1)).toBe("event 6");
  second.close();
  third.close();
});
