/** The addresses of the pages. */

export const PAGES = [
  { name: "herd", pattern: "/", title: "Herd" },
  { name: "session", pattern: "/sandboxes/{id}", title: "Session" },
  { name: "replay", pattern: "/sandboxes/{id}/replay", title: "Replay" },
  { name: "task", pattern: "/new", title: "New task" },
  { name: "detail", pattern: "/tasks/{id}", title: "Task" },
  { name: "search", pattern: "/search", title: "Search" },
  { name: "statistics", pattern: "/usage", title: "Usage" },
  { name: "compare", pattern: "/compare", title: "Compare" },
  { name: "approvals", pattern: "/approvals", title: "Approvals" },
  { name: "conductor", pattern: "/conductor", title: "Conductor" },
  { name: "budgets", pattern: "/budgets", title: "Budgets" },
  { name: "operations", pattern: "/operations", title: "Operations" },
  { name: "sign-in", pattern: "/sign-in", title: "Sign in" },
] as const;

export type PageName = (typeof PAGES)[number]["name"] | "missing";

export interface Route {
  page: PageName;
  title: string;
  /** The name in the path, where there is one. */
  id: string;
}

/** The page of a path. */
export function routeOf(path: string): Route {
  const parts = split(path);
  for (const { name, pattern, title } of PAGES) {
    const wanted = split(pattern);
    if (wanted.length !== parts.length) continue;
    if (!wanted.every((part, index) => part === "{id}" || part === parts[index])) continue;
    const id = parts[wanted.indexOf("{id}")] ?? "";
    return { page: name, title: id || title, id };
  }
  return { page: "missing", title: "Not found", id: "" };
}

function split(path: string): string[] {
  return path.split("/").filter(Boolean).map(decoded);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** A path of this site to go to after signing in; any other address is replaced by the first page. */
export function safeReturn(wanted: string | null): string {
  if (!wanted || !/^\/(?![/\\])/.test(wanted) || /[\u0000-\u001f\\]/.test(wanted)) return "/";
  return routeOf(wanted.split(/[?#]/)[0] ?? "/").page === "sign-in" ? "/" : wanted;
}
