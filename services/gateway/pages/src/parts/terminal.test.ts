import { describe, expect, it } from "vitest";
import { Patch } from "./patch";
import { bare, LONGEST, TerminalText } from "./terminal";

function shown(text: string): TerminalText {
  const found = new TerminalText();
  found.push(text);
  return found;
}

describe("terminal output", () => {
  it("has colours and emphasis, also over line ends and pieces", () => {
    const text = new TerminalText();
    for (const piece of ["\u001b[1;3", "1mred\nstill", " red\u001b[0m plain\n\u001b[38;5;46mgr", "een"]) text.push(piece);
    expect(text.count).toBe(3);
    expect([0, 1, 2].map((index) => text.line(index))).toEqual([
      [{ text: "red", style: "b f1" }],
      [{ text: "still red", style: "b f1" }, { text: " plain", style: "" }],
      [{ text: "green", style: "f10" }],
    ]);
  });

  it("shows what a line was overwritten with", () => {
    expect(bare("10 %\r 50 %\r100 %\r")).toBe("100 %");
    expect(shown("a\r\nb\r\n").line(0)).toEqual([{ text: "a", style: "" }]);
  });

  it("has no effect but styles: no clipboard, titles, links, cursor, hidden text", () => {
    const hostile = [
      "\u001b]52;c;ZXZpbA==\u0007x",
      "\u001b]0;title\u001b\\x",
      "\u001b]8;;javascript:alert(1)\u0007x\u001b]8;;\u0007",
      "\u001b[2J\u001b[Hx",
      "\u001bPq#0\u001b\\x",
      "\u009d52;c;aa\u0007x",
      "\u001b[8mx",
      "\u001b[<u\u001b[?1049hx",
    ];
    for (const text of hostile) {
      expect(shown(`${text}\n`).line(0).map((span) => span.text).join("")).toBe("x");
      expect(bare(text)).toBe("x");
    }
    expect(bare("\u202egpj.exe")).toBe("\ufffdgpj.exe");
    expect(shown("\u001b]52;c;never ends\n").line(0)).toEqual([]);
  });

  it("finds lines in both directions, and counts them", () => {
    const text = shown(Array.from({ length: 500 }, (_, index) => `line ${index}\n`).join(""));
    expect(text.find("LINE 49", 48)).toBe(49);
    expect(text.find("line 49", 49)).toBe(490);
    expect(text.find("line 49", 49, true)).toBe(499);
    expect(text.find("missing", 0)).toBe(-1);
    expect(text.matches("line 49")).toBe(11);
    const coloured = shown("\u001b[31mred\u001b[0m\n");
    expect(coloured.find("red", 0)).toBe(0);
  });

  it("cuts a line that is too long, and does so in linear time", () => {
    const long = shown(`${"x".repeat(LONGEST + 50)}\n`);
    expect(long.line(0).at(-1)?.text).toBe(" … 50 more characters");
    expect(shown(`${"\u001b]".repeat(200_000)}\n`).line(0)).toHaveLength(1);
    expect(shown("y".repeat(5_000_000)).count).toBe(1);
  });
});

describe("a diff", () => {
  it("has the numbers of its lines", () => {
    const patch = new Patch("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -3,2 +3,3 @@ f\n a\n-b\n+c\n+d\n");
    expect(Array.from({ length: patch.count }, (_, index) => patch.line(index))).toEqual([
      { sign: "#", old: 0, new: 0, text: "diff --git a/x b/x" },
      { sign: "#", old: 0, new: 0, text: "--- a/x" },
      { sign: "#", old: 0, new: 0, text: "+++ b/x" },
      { sign: "@", old: 0, new: 0, text: "@@ -3,2 +3,3 @@ f" },
      { sign: " ", old: 3, new: 3, text: "a" },
      { sign: "-", old: 4, new: 0, text: "b" },
      { sign: "+", old: 0, new: 4, text: "c" },
      { sign: "+", old: 0, new: 5, text: "d" },
    ]);
    expect([patch.added, patch.removed, patch.hunk(0), patch.hunk(7, true), patch.hunk(3)]).toEqual([2, 1, 3, 3, -1]);
    expect(new Patch("").count).toBe(0);
  });
});
