/** Replies to requests for the same thing: one that was overtaken by the reply to a later request is not taken. */

export class Replies {
  #begun = 0;
  #taken = 0;

  /** Begin a request; the result takes its reply, and returns false if that of a later request was taken before. */
  begin(): () => boolean {
    const number = ++this.#begun;
    return () => {
      if (number < this.#taken) return false;
      this.#taken = number;
      return true;
    };
  }
}
