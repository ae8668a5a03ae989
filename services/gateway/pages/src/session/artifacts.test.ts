import { expect, it } from "vitest";
import { isDiff, noteOf } from "./artifacts";

it("states why an edit has no diff, and takes no note for one", () => {
  expect(["--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "not read: 2877800 bytes", ""].map(isDiff)).toEqual([true, false, false]);
  expect(noteOf("not read: 2877800 bytes", false)).toBe("Too large for a diff: 2.7 MiB");
  expect(noteOf("", true)).toBe("A binary file: its content is not shown");
  expect(noteOf("the content is the same", false)).toBe("No diff: the content is the same");
  expect(noteOf("--- /dev/null\n+++ b/x\n@@ -0,0 +0,0 @@\n", false)).toBe("The file is empty");
  expect(noteOf("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", false)).toBe("");
  expect(noteOf("", false)).toBe("No diff is stored of this edit");
});
