/** Files that agents hinder each other in. */

import type { HindranceView } from "../api/schema";

const SHOWN = 6;

/** The files of a finding, the first of them. */
export function filesOf(finding: HindranceView): string[] {
  const all = new Set([...(finding.file_path ? [finding.file_path] : []), ...(finding.paths ?? [])]);
  const files = [...all];
  return files.length > SHOWN ? [...files.slice(0, SHOWN), `and ${files.length - SHOWN} more`] : files;
}

/** The lines of both agents, as text. */
export function lineText(finding: HindranceView): string {
  const text = (range: readonly number[] | null | undefined) => (range ? `${range[0]}–${range[1]}` : "");
  const [own, other] = [text(finding.lines), text(finding.other_lines)];
  return own && other ? `lines ${own} and ${other}` : own ? `lines ${own}` : "";
}

export interface Overlap {
  file: string;
  sandboxes: string[];
}

/** The files that several sandboxes edit, those with the most sandboxes first. */
export function overlapOf(findings: readonly HindranceView[]): Overlap[] {
  const found = new Map<string, Set<string>>();
  for (const finding of findings) {
    if (finding.kind !== "conflict") continue;
    for (const file of [...(finding.file_path ? [finding.file_path] : []), ...(finding.paths ?? [])]) {
      const sandboxes = found.get(file) ?? new Set();
      sandboxes.add(finding.sandbox).add(finding.other);
      found.set(file, sandboxes);
    }
  }
  return [...found]
    .map(([file, sandboxes]) => ({ file, sandboxes: [...sandboxes].sort() }))
    .sort((a, b) => b.sandboxes.length - a.sandboxes.length || a.file.localeCompare(b.file));
}
