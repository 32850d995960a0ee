// SPDX-License-Identifier: MIT
// What a client throws. Classes mirror what a program may want to do next; `code` is the server's stable word.

import type { Problem, RunResult } from "./generated.js";

/** Everything that this package throws by itself. A caller's own abort is thrown as the reason that its signal has. */
export class AgentboxError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** No connection, or one that was cut; `cause` is what the platform says. */
export class AgentboxConnectionError extends AgentboxError {}

/** The client's own time was up (`requestTimeoutSeconds`), not the program's. */
export class AgentboxTimeoutError extends AgentboxError {}

/** The body of an answer of 400 or more, as far as it is known. */
export interface ProblemBody {
  detail?: unknown;
  code?: string;
  hint?: string;
  request_id?: string;
  retry_after_seconds?: number;
  result?: RunResult;
  errno?: string;
  path?: string | null;
  policy?: NonNullable<Problem["policy"]>;
  [more: string]: unknown;
}

/** The server answered with a status of 400 or more. `message` is `<what> failed: <status> <detail>`. */
export class AgentboxHTTPError extends AgentboxError {
  /** What is wrong, in words. */
  readonly detail: string;
  /** The server's stable word for the kind of error, "" where it gave none. */
  readonly code: string;
  /** What would help, in words. */
  readonly hint: string;
  /** To be named in a report; also in the server's log. */
  readonly requestId: string;
  /** Seconds after which trying again may help, where the server says so. */
  readonly retryAfterSeconds: number | undefined;
  /** What is known about a program that did run: after a timeout, or when its files cannot be kept. */
  readonly result: RunResult | undefined;

  constructor(
    what: string,
    readonly status: number,
    readonly body: ProblemBody,
    retryAfter?: string | null,
  ) {
    super(`${what} failed: ${status} ${words(body.detail)}`);
    this.detail = words(body.detail);
    this.code = body.code ?? "";
    this.hint = body.hint ?? "";
    this.requestId = body.request_id ?? "";
    this.result = body.result;
    const seconds = Number(body.retry_after_seconds ?? retryAfter ?? Number.NaN);
    this.retryAfterSeconds = Number.isFinite(seconds) ? seconds : undefined;
  }
}

/** 400, 422 and the like: the request cannot be done as it is; nothing ran. */
export class InvalidRequestError extends AgentboxHTTPError {}

/** The text of a policy has a fault: `fault` says where, and `source` and `caret` show it. */
export class PolicySyntaxError extends InvalidRequestError {
  /** Line and column from 1 on, and what is wrong there. */
  get fault(): NonNullable<Problem["policy"]> {
    return this.body.policy as NonNullable<Problem["policy"]>;
  }
}

/** 401: a key is missing or unknown. */
export class AuthenticationError extends AgentboxHTTPError {}

/** 404: nothing of that name for this key. */
export class NotFoundError extends AgentboxHTTPError {}

/** 408: the program passed its timeout; `result` holds what it did until then. */
export class RunTimedOutError extends AgentboxHTTPError {}

/** 409: what is there does not allow it, such as a quota. */
export class ConflictError extends AgentboxHTTPError {}

/** 410: the box is gone; `reset()` makes it anew around the same workspace. */
export class SandboxGoneError extends AgentboxHTTPError {}

/** 429: the server is busy and nothing ran. */
export class OverloadedError extends AgentboxHTTPError {}

/** 500 and above. */
export class ServerError extends AgentboxHTTPError {}

/** An operation on a file of a sandbox failed, or a program could not be started; it may be done otherwise. */
export class SandboxFileError extends AgentboxHTTPError {
  /** The system's word: ENOENT, EACCES, EISDIR and so on. */
  get errno(): string {
    return this.body.errno ?? "";
  }

  /** The path that was asked for, or the program that is not there. */
  get path(): string {
    return this.body.path ?? "";
  }
}

const CLASSES: Record<number, typeof AgentboxHTTPError> = {
  401: AuthenticationError,
  404: NotFoundError,
  408: RunTimedOutError,
  409: ConflictError,
  410: SandboxGoneError,
  429: OverloadedError,
};

/** The error of an answer; `text` is its body. */
export function errorOf(what: string, status: number, text: string, retryAfter?: string | null): AgentboxHTTPError {
  return errorOfBody(what, status, parsed(text), retryAfter);
}

/** The error of a body that was read already, such as that of an event. */
export function errorOfBody(
  what: string,
  status: number,
  body: ProblemBody,
  retryAfter?: string | null,
): AgentboxHTTPError {
  const fallback = status >= 500 ? ServerError : InvalidRequestError;
  const byContent = body.errno ? SandboxFileError : body.policy ? PolicySyntaxError : undefined;
  const Kind = byContent ?? CLASSES[status] ?? fallback;
  return new Kind(what, status, body, retryAfter);
}

function parsed(text: string): ProblemBody {
  try {
    const body: unknown = JSON.parse(text);
    if (typeof body === "object" && body !== null && !Array.isArray(body)) return body as ProblemBody;
  } catch {
    // Something between client and server answered in words of its own.
  }
  return { detail: text };
}

/** A list of faults in a line: where each is, and what is wrong. */
function words(detail: unknown): string {
  if (!Array.isArray(detail)) return typeof detail === "string" ? detail : JSON.stringify(detail ?? "");
  return detail
    .map((fault: { loc?: unknown[]; msg?: string }) => `${(fault.loc ?? []).join(".")}: ${fault.msg ?? ""}`)
    .join("; ");
}
