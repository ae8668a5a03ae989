/** The complete values of events, which are stored as artifacts when they are large. */

import { address, ApiError, path } from "../api/client";
import { line, size } from "../parts/format";

export interface Artifact {
  artifact: string;
  size: number;
  media_type?: string | null;
}

/** The largest artifact that is shown; larger ones are downloaded. In bytes. */
export const SHOWN_BYTES = 24 * 1024 * 1024;

export function isArtifact(value: unknown): value is Artifact {
  const found = value as Artifact | null;
  return typeof found === "object" && found !== null && typeof found.artifact === "string" && typeof found.size === "number";
}

/** The address from which an artifact is downloaded: the response is an attachment, which browsers do not show. */
export function artifactAddress(artifact: string, sandbox: string): string {
  return address(path("artifacts", artifact), { sandbox });
}

/** An artifact as text. Raises `ApiError`. */
export async function artifactText(reference: Artifact, sandbox: string): Promise<string> {
  if (reference.size > SHOWN_BYTES) throw new ApiError(413, "it is too large to be shown here", "refused", null, "download it");
  const response = await fetch(artifactAddress(reference.artifact, sandbox), { credentials: "same-origin" });
  if (!response.ok) throw new ApiError(response.status, `${reference.artifact} can't be read`, "unavailable", null, "retry later");
  return response.text();
}

/** The artifacts of an event, by the path of the value that each completes. */
export function artifactsOf(data: Record<string, unknown>): [string, Artifact][] {
  const listed = Object.entries((data["artifacts"] as Record<string, unknown> | null | undefined) ?? {});
  const own = Object.entries(data).filter(([name]) => name !== "artifacts");
  return [...listed, ...own].filter((pair): pair is [string, Artifact] => isArtifact(pair[1]));
}

/** Whether a text is a diff with lines: in place of one, a worker states why there is none. */
export function isDiff(text: string): boolean {
  return /^@@ (?!-0,0 \+0,0 )/m.test(text);
}

/** Why an edit is shown without a diff; empty if it has one. */
export function noteOf(text: string, binary: boolean): string {
  if (isDiff(text)) return "";
  if (text.includes("\n@@ -0,0 +0,0 @@")) return "The file is empty";
  const unread = /^not read: (\d+) bytes$/.exec(text.trim());
  if (unread) return `Too large for a diff: ${size(Number(unread[1]))}`;
  if (binary) return "A binary file: its content is not shown";
  return text.trim() ? `No diff: ${line(text)}` : "No diff is stored of this edit";
}

/** The diff of an event about an edit: complete where it can be had. */
export async function diffOf(data: Record<string, unknown>, sandbox: string): Promise<string> {
  if (typeof data["full_diff"] === "string" && data["full_diff"]) return data["full_diff"];
  if (isArtifact(data["full_diff_ref"])) return artifactText(data["full_diff_ref"], sandbox);
  return typeof data["diff_preview"] === "string" ? data["diff_preview"] : "";
}

