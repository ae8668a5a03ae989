import { expect, it } from "vitest";
import type { HindranceView } from "../api/schema";
import { filesOf, lineText, overlapOf } from "./files";

const finding = (changes: Partial<HindranceView>) =>
  ({ finding_id: "f", kind: "conflict", sandbox: "sbx-1", task: "t-1", other: "sbx-2", since: "2026-11-20T12:00:00Z", ...changes }) as HindranceView;

it("lists the files that several agents edit", () => {
  const findings = [
    finding({ file_path: "b.py", paths: ["b.py", "a.py"] }),
    finding({ sandbox: "sbx-3", file_path: "a.py" }),
    finding({ kind: "duplicate", paths: ["c.py"] }),
  ];
  expect(overlapOf(findings)).toEqual([
    { file: "a.py", sandboxes: ["sbx-1", "sbx-2", "sbx-3"] },
    { file: "b.py", sandboxes: ["sbx-1", "sbx-2"] },
  ]);
  expect(filesOf(finding({ paths: [..."abcdefgh"] }))).toEqual([..."abcdef", "and 2 more"]);
  expect(lineText(finding({ lines: [3, 9], other_lines: [5, 7] }))).toBe("lines 3–9 and 5–7");
});
