/** Who uses this page: the session of the browser, and its end. */

import { ApiError, get, type Reply } from "../api/client";
import { Replies } from "../api/replies";
import { live } from "./live.svelte";
import { router } from "./router.svelte";

const RANKS = ["read", "work", "approve", "operate"] as const;
export type Role = (typeof RANKS)[number];

export type Session = Reply<"get_session">;

class CurrentSession {
  /** Undefined until it is known; null without a session. */
  current = $state.raw<Session | null | undefined>(undefined);
  problem = $state.raw<ApiError | null>(null);
  #replies = new Replies();

  /** Find out who uses the page. */
  async load(): Promise<void> {
    const take = this.#replies.begin();
    try {
      const found = await get<"get_session">("/session");
      if (!take()) return;
      this.current = found;
      live.audience = `${found.project} ${found.name}`;
      this.problem = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      // A reply from before the sign-in does not end the session that it began.
      if (!take()) return;
      if (error.signedOut) this.end();
      else this.problem = error;
    }
  }

  /** Whether the user's role permits this. */
  may(role: Role): boolean {
    return !!this.current && RANKS.indexOf(this.current.role) >= RANKS.indexOf(role);
  }

  /** The session has ended: sign in, and return to this address. */
  end(): void {
    this.current = null;
    live.stop();
    if (router.route.page === "sign-in") return;
    const here = location.pathname + location.search;
    router.go(`/sign-in${here === "/" ? "" : `?next=${encodeURIComponent(here)}`}`, true);
  }
}

export const session = new CurrentSession();
