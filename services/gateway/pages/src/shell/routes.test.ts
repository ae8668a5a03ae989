import { expect, it } from "vitest";
import { routeOf, safeReturn } from "./routes";

it("finds the page of an address", () => {
  expect(["/", "/sandboxes/sbx-1", "/sandboxes/sbx-1/replay", "/new/", "/sandboxes", "/%zz"].map((path) => routeOf(path).page)).toEqual([
    "herd", "session", "replay", "task", "missing", "missing",
  ]);
  expect(routeOf("/sandboxes/sbx-1").id).toBe("sbx-1");
});

it("returns after the sign-in to this site only", () => {
  expect(["/approvals?state=pending", "//x.example", "/\\x.example", "https://x.example", "/\t/x", "/sign-in?return=/", null].map(safeReturn)).toEqual([
    "/approvals?state=pending", "/", "/", "/", "/", "/", "/",
  ]);
});
