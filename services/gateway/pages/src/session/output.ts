/** Reading terminal output without a frame that takes long, however much there is. */

import { get, path } from "../api/client";

export interface Chunk {
  stream_sequence: number;
  time: string;
  text: string;
}

/** How many chunks a request reads, and how long work may take before the browser draws, in milliseconds. */
const PAGE = 40;
const SLICE = 8;

/** The output of a sandbox behind a cursor, oldest first; `take` gets each chunk. The last cursor is returned. */
export async function readOutput(sandbox: string, cursor: string | null, take: (chunk: Chunk) => void, drawn: () => void, stopped: () => boolean): Promise<string | null> {
  let last = cursor;
  while (!stopped()) {
    const found = await get<"output">(path("sandboxes", sandbox, "output"), { cursor: last, limit: PAGE });
    let begun = performance.now();
    for (const chunk of found.chunks) {
      take(chunk);
      if (performance.now() - begun < SLICE) continue;
      await new Promise((resolve) => setTimeout(resolve));
      begun = performance.now();
    }
    drawn();
    if (!found.next_cursor) break;
    last = found.next_cursor;
  }
  return last;
}
