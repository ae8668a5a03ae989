import { describe, expect, it } from "vitest";
import { counted, duration, exact, line, money, plain, relative, safeLink, size } from "./format";

describe("values as text", () => {
  it("has a noun in the singular for one thing", () => {
    expect([counted(0, "file"), counted(1, "file"), counted(2000, "row")]).toEqual(["0 files", "1 file", "2,000 rows"]);
  });

  it("has at most two units", () => {
    expect([0, 59, 60, 7505, 90_000].map(duration)).toEqual(["0 s", "59 s", "1 min", "2 h 5 min", "1 d 1 h"]);
    expect([1000, 61_000, -3_600_000].map((past) => relative(0, past))).toEqual(["now", "1 min ago", "in 1 h"]);
    expect([0, 1_230_000, 4_200, 1_234_567_890].map(money)).toEqual(["$0.00", "$1.23", "$0.0042", "$1,234.57"]);
    expect(exact(Date.UTC(2026, 10, 8, 6, 0, 6))).toMatch(/^2026-11-\d\d \d\d:00:06 /);
    expect([12, 2048, 20 * 1024 ** 2].map(size)).toEqual(["12 B", "2.0 KiB", "20 MiB"]);
  });

  it("shows what would be invisible", () => {
    expect(plain("a\u202eb\u0007\tc\n")).toBe("a\ufffdb\ufffd\tc\n");
    for (const hidden of ["\u061c", "\u2028", "\u115f", "\u3164", "\u2800", "\u00ad", "\ufe00", "\u{e0041}", "\u{1d159}", "\ud800"]) {
      expect(plain(`a${hidden}b`)).toBe("a\ufffdb");
    }
    expect(plain("✔️ 中文 हिन्दी a👍🏽")).toBe("✔️ 中文 हिन्दी a👍🏽");
    expect(line("\n first\u001b[31m \nsecond")).toBe("first\ufffd[31m ");
    expect(line("x".repeat(300))).toHaveLength(200);
  });

  it("links to http and https only", () => {
    for (const text of ["javascript:alert(1)", "data:text/html,x", "//x.example", "https://u:p@x.example", "", null]) expect(safeLink(text)).toBeNull();
    expect(safeLink("https://x.example/a")).toBe("https://x.example/a");
  });
});
