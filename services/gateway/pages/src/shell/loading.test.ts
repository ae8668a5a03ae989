import { expect, it } from "vitest";
import { loaded } from "./loading";

const failing = () => Promise.reject(new Error("not fetched"));
const browser = (reloadedAt: number, reachableAt: number) => {
  const done: string[] = [];
  let reloaded = reloadedAt;
  const by = {
    pause: async (ms: number) => void done.push(`${ms}`),
    isReachable: async () => done.length >= reachableAt,
    lastReload: () => reloaded,
    reload: () => {
      reloaded = Date.now();
      done.push("reload");
    },
  };
  return { done, by };
};

it("reloads the page once the gateway can be reached", async () => {
  const { done, by } = browser(0, 2);
  expect(await loaded(async () => "part", by)).toBe("part");
  void loaded(failing, by);
  await expect.poll(() => done).toEqual(["300", "1000", "reload"]);
});

it.each([
  ["it was reloaded a moment ago", Date.now(), 0],
  ["the gateway can't be reached", 0, 9],
])("shows the error if %s", async (_, reloaded, reachableAt) => {
  const { done, by } = browser(reloaded, reachableAt);
  await expect(loaded(failing, by)).rejects.toThrow("not fetched");
  expect(done).not.toContain("reload");
});

it("reloads the page once if two parts can't be loaded", async () => {
  const { done, by } = browser(0, 1);
  const first = loaded(failing, by);
  await expect(Promise.race([first, loaded(failing, by)])).rejects.toThrow("not fetched");
  expect(done.filter((one) => one === "reload")).toEqual(["reload"]);
});
