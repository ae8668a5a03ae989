/** The current address. Links of this site change it without loading the page anew. */

import { type Route, routeOf } from "./routes";

class Router {
  route = $state.raw<Route>(routeOf(location.pathname));
  query = $state.raw(new URLSearchParams(location.search));

  constructor() {
    addEventListener("popstate", () => this.#read());
    addEventListener("click", (event) => this.#click(event));
  }

  /** Go to an address of this site. */
  go(address: string, replace = false): void {
    history[replace ? "replaceState" : "pushState"](null, "", address);
    const page = this.route.page;
    const id = this.route.id;
    this.#read();
    if (this.route.page !== page || this.route.id !== id) {
      scrollTo(0, 0);
      // Screen readers continue at the heading of the new page, not at the link that is gone.
      requestAnimationFrame(() => document.querySelector<HTMLElement>("main")?.focus({ preventScroll: true }));
    }
  }

  /** Change values of the query; empty ones are removed. */
  filter(values: Record<string, string | null>): void {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    this.go(`${location.pathname}${text ? `?${text}` : ""}`, true);
  }

  #read(): void {
    this.route = routeOf(location.pathname);
    this.query = new URLSearchParams(location.search);
  }

  #click(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element | null)?.closest("a");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/") || (link.hash && link.pathname === location.pathname)) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

export const router = new Router();
