import { expect, it } from "vitest";
import { Outbox, type Store } from "./outbox";

function stored(): Store {
  const values = new Map<string, string>();
  return { getItem: (key) => values.get(key) ?? null, setItem: (key, value) => void values.set(key, value), removeItem: (key) => void values.delete(key) };
}

it("leaves in the box what could not be sent, marked, and sends it under the same key", async () => {
  const store = stored();
  let keys = 0;
  const box = new Outbox("sbx-1", store, () => `key-${++keys}`);
  box.write("stop", "user_message");
  const tried: string[] = [];
  expect(await box.send(async ({ key }) => { tried.push(key); throw new Error("the gateway does not respond"); })).toBe(false);
  expect(box.draft).toMatchObject({ text: "stop", problem: "the gateway does not respond" });
  const again = new Outbox("sbx-1", store, () => `key-${++keys}`);
  expect(again.draft).toMatchObject({ text: "stop", problem: "the gateway does not respond" });
  expect(await again.send(async ({ key }) => void tried.push(key))).toBe(true);
  expect(tried).toEqual(["key-1", "key-1"]);
  expect(again.draft.text).toBe("");
  expect(new Outbox("sbx-1", store, () => "").draft.text).toBe("");
});

it("is another message once its text has changed, also while the first is being sent", async () => {
  const box = new Outbox("sbx-1", stored(), () => crypto.randomUUID());
  box.write("one", "user_message");
  let first = "";
  await box.send(async ({ key }) => {
    first = key;
    box.write("two", "user_message");
  });
  expect(box.draft).toMatchObject({ text: "two", problem: "" });
  await box.send(async ({ key }) => expect(key).not.toBe(first));
});
