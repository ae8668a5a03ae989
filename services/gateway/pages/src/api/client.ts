/** Requests to the API of the same origin, with the types of docs/openapi.json, and its errors (problem+json). */

import type { operations, ProblemDetails } from "./schema";

export const BASE = "/api/v1";
/** Maximum duration of a request, in milliseconds. */
const REQUEST_TIMEOUT = 30_000;

/** An error that the API has returned. If there was no response, its `status` is 0. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string = "unavailable",
    readonly field: string | null = null,
    readonly remedy: string | null = null,
  ) {
    super(message);
  }

  /** Whether the session has ended, so that the user has to sign in. */
  get signedOut(): boolean {
    return this.status === 401;
  }

  /** Whether the requested object does not exist. */
  get missing(): boolean {
    return this.status === 404;
  }

  /** Whether the same request may succeed later. */
  get temporary(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

type Values = Record<string, string | number | boolean | readonly string[] | null | undefined>;
type Success<Operation> = Operation extends { responses: infer R }
  ? R extends { 200: { content: { "application/json": infer Body } } }
    ? Body
    : R extends { 202: { content: { "application/json": infer Body } } }
      ? Body
      : unknown
  : unknown;
/** The response of an operation, which is named as in docs/openapi.json. */
export type Reply<Name extends keyof operations> = Success<operations[Name]>;

/** The address of a request. The query has no values that are null, undefined or empty. */
export function address(path: string, query: Values = {}): string {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) pairs.append(name, String(one));
  }
  const text = pairs.toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

/** A path of these names. Each name is encoded. */
export function path(...parts: string[]): string {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

/** The error in a response with an error status. */
export async function problemOf(response: Response): Promise<ApiError> {
  const found = (await response.json().catch(() => null)) as ProblemDetails | null;
  if (found === null) return new ApiError(response.status, `the gateway responds with ${response.status}`);
  return new ApiError(response.status, found.detail, found.code, found.field ?? null, found.remedy ?? null);
}

async function request(method: string, url: string, body?: unknown, headers: Record<string, string> = {}): Promise<unknown> {
  const sent: Record<string, string> = body === undefined ? {} : { "Content-Type": "application/json" };
  let response: Response;
  try {
    response = await fetch(url, {
      method,
      credentials: "same-origin",
      headers: { Accept: "application/json", ...sent, ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(REQUEST_TIMEOUT),
    });
  } catch {
    throw new ApiError(0, "the gateway does not respond", "unavailable", null, "check the connection");
  }
  if (!response.ok) throw await problemOf(response);
  return response.status === 204 ? null : response.json().catch(() => null);
}

/** Send a GET request, and return the response. */
export async function get<Name extends keyof operations>(url: string, query: Values = {}): Promise<Reply<Name>> {
  return (await request("GET", address(url, query))) as Reply<Name>;
}

/** Send a POST request, which stores a command. With an idempotency key, a repeated request has no further effect. */
export async function post<Name extends keyof operations>(url: string, body?: unknown, key?: string): Promise<Reply<Name>> {
  return (await request("POST", address(url), body, key ? { "Idempotency-Key": key } : {})) as Reply<Name>;
}

/** Send a PUT request, which creates an object. */
export async function put<Name extends keyof operations>(url: string, body: unknown): Promise<Reply<Name>> {
  return (await request("PUT", address(url), body)) as Reply<Name>;
}

/** Send a DELETE request. */
export async function remove(url: string): Promise<void> {
  await request("DELETE", address(url));
}
