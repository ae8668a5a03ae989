/** The files that a session has changed, from its events about edits. */

import type { FileChange, StoredEvent } from "./events";
import { pieceOf } from "./events";
import { refOf, type Ref } from "./timeline";

export interface Edit extends FileChange {
  ref: Ref;
  at: string;
}

export interface ChangedFile {
  path: string;
  /** What has happened to it in all: `created` then `modified` is created. */
  change: string;
  added: number;
  removed: number;
  binary: boolean;
  /** Oldest first. */
  edits: Edit[];
}

const ORDER = new Intl.Collator("en", { numeric: true });

/** The edits in events; others are left out. */
export function editsOf(events: readonly StoredEvent[]): Edit[] {
  const found: Edit[] = [];
  for (const event of events) {
    const file = event.envelope.type === "agent.file_edited" ? pieceOf(event)?.file : null;
    if (file) found.push({ ...file, ref: refOf(event), at: event.envelope.time });
  }
  return found;
}

/** Files in the order of their paths, with their edits up to a position. */
export function filesOf(edits: readonly Edit[], until = Number.POSITIVE_INFINITY): ChangedFile[] {
  const files = new Map<string, ChangedFile>();
  for (const edit of edits.toSorted((one, other) => one.sequence - other.sequence)) {
    if (edit.sequence > until) break;
    const file = files.get(edit.path);
    if (!file) {
      files.set(edit.path, { path: edit.path, change: edit.change, added: edit.added, removed: edit.removed, binary: edit.binary, edits: [edit] });
      continue;
    }
    file.edits.push(edit);
    file.added += edit.added;
    file.removed += edit.removed;
    file.binary ||= edit.binary;
    file.change = file.change === "created" && edit.change === "modified" ? "created" : edit.change;
  }
  return [...files.values()].sort((one, other) => ORDER.compare(one.path, other.path));
}
