/** Server-Sent Events from a stream of text. */

export interface Frame {
  event: string;
  id: string;
  data: string;
}

/** Collects text, and returns the messages that are complete. Comments and fields that are not used are left out. */
export class FrameParser {
  #left = "";
  #frame: Frame = { event: "message", id: "", data: "" };

  push(text: string): Frame[] {
    const frames: Frame[] = [];
    const lines = (this.#left + text).split("\n");
    this.#left = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "" || line === "\r") {
        if (this.#frame.data !== "") frames.push(this.#frame);
        this.#frame = { event: "message", id: this.#frame.id, data: "" };
      } else {
        this.#take(line.endsWith("\r") ? line.slice(0, -1) : line);
      }
    }
    return frames;
  }

  #take(line: string): void {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#frame.event = value;
    else if (name === "id") this.#frame.id = value;
    else if (name === "data") this.#frame.data += (this.#frame.data ? "\n" : "") + value;
  }
}
