/** Messages to an agent that are not sent yet: what can't be sent stays, and is sent once however often it is tried. */

export type Sendable = "user_message" | "guardian_nudge" | "interrupt";

export interface Draft {
  text: string;
  type: Sendable;
  /** Why it could not be sent; empty if that was not tried. */
  problem: string;
  /** The idempotency key, which a repeated attempt has, too, unless the text has changed. */
  key: string;
}

export interface Store {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

const EMPTY: Draft = { text: "", type: "user_message", problem: "", key: "" };

/** The text in the box of one sandbox; it is there again after the page is loaded anew. */
export class Outbox {
  draft: Draft;
  readonly #name: string;

  constructor(
    sandbox: string,
    private readonly store: Store,
    private readonly newKey: () => string,
  ) {
    this.#name = `sandherd.draft.${sandbox}`;
    this.draft = this.#stored();
  }

  /** The text or the type has changed: it is another message. */
  write(text: string, type: Sendable): void {
    if (text === this.draft.text && type === this.draft.type) return;
    this.#set({ text, type, problem: "", key: "" });
  }

  /** Send it by `post`; whether it was accepted. Otherwise it stays, with the problem. */
  async send(post: (draft: Draft) => Promise<unknown>): Promise<boolean> {
    const sent = { ...this.draft, key: this.draft.key || this.newKey(), problem: "" };
    this.#set(sent);
    try {
      await post(sent);
    } catch (error) {
      if (this.draft.key === sent.key) this.#set({ ...this.draft, problem: error instanceof Error ? error.message : String(error) });
      return false;
    }
    if (this.draft.key === sent.key) this.#set({ ...EMPTY, type: sent.type });
    return true;
  }

  #set(draft: Draft): void {
    this.draft = draft;
    try {
      if (draft.text) this.store.setItem(this.#name, JSON.stringify(draft));
      else this.store.removeItem(this.#name);
    } catch {
      // Without storage the text is in this page only.
    }
  }

  #stored(): Draft {
    try {
      const found = JSON.parse(this.store.getItem(this.#name) ?? "null") as Draft | null;
      return found && typeof found.text === "string" ? { ...EMPTY, ...found } : EMPTY;
    } catch {
      return EMPTY;
    }
  }
}
