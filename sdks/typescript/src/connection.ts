// SPDX-License-Identifier: MIT
// Requests of a server: addresses, keys, the client's own time, and which request may be sent again.

import { AgentboxConnectionError, AgentboxHTTPError, AgentboxTimeoutError, errorOf, OverloadedError } from "./errors.js";
import { type Operation, ROUTES } from "./generated.js";

/** Where `agentbox serve` listens by default. */
export const DEFAULT_URL = "http://localhost:8080";

/** What every client may be told. */
export interface ConnectionOptions {
  /** Key of this caller, where the server needs one. */
  apiKey?: string;
  /** How often a request that is safe to repeat is sent again: 0 by default, so never. */
  retries?: number;
  /** Seconds until an answer must begin. A run, a command or a file has as long as it takes once it has begun. */
  requestTimeoutSeconds?: number;
  /** Another `fetch` than the platform's. */
  fetch?: typeof fetch;
}

/** What every call may be told. */
export interface CallOptions {
  /** Ends the call when it is aborted; what the call then throws is the signal's reason. */
  signal?: AbortSignal;
}

/** One request. */
export interface Call extends CallOptions {
  /** What the message of an error begins with; by default the operation's name. */
  what?: string;
  path?: Record<string, string>;
  /** Bytes are for names that are no UTF-8. */
  query?: Record<string, string | number | boolean | Uint8Array | undefined>;
  json?: unknown;
  /** Bytes; a stream is sent once and never again. */
  bytes?: Uint8Array | ReadableStream<Uint8Array>;
  contentType?: string;
  accept?: string;
  headers?: Record<string, string>;
  /** Seconds until the answer must begin, in place of the client's. */
  timeoutSeconds?: number;
  /** Whether it may be sent again after a cut connection; by default where the method says so. */
  repeat?: boolean;
}

/** The platform's fetch gives up after this many seconds without a head, so nothing may need longer. */
const DEFAULT_TIMEOUT_SECONDS = 290;
const IDEMPOTENT = new Set(["GET", "PUT"]);
const PASSING = new Set([502, 503, 504]);
const FIRST_PAUSE_SECONDS = 0.2;

/** A server as one caller sees it. */
export class Connection {
  /** Address without a slash at its end. */
  readonly url: string;
  readonly #options: ConnectionOptions;

  constructor(url: string, options: ConnectionOptions) {
    this.url = url.replace(/\/+$/, "");
    this.#options = options;
  }

  /** The same caller at the same server. */
  get options(): ConnectionOptions {
    return this.#options;
  }

  /** The JSON of a success. Throws AgentboxError. */
  async json<T>(operation: Operation, call: Call = {}): Promise<T> {
    const answer = await this.send(operation, call);
    return (await this.#body(operation, call, () => answer.json())) as T;
  }

  /** The text of a success. Throws AgentboxError. */
  async text(operation: Operation, call: Call = {}): Promise<string> {
    const answer = await this.send(operation, call);
    return this.#body(operation, call, () => answer.text());
  }

  /** Ask for something that has no answer but its success. Throws AgentboxError. */
  async done(operation: Operation, call: Call = {}): Promise<void> {
    const answer = await this.send(operation, call);
    await answer.body?.cancel();
  }

  /** The whole body of an answer. Throws AgentboxConnectionError for a connection that is cut. */
  async bytes(operation: Operation, answer: Response, call: Call = {}): Promise<Uint8Array> {
    return new Uint8Array(await this.#body(operation, call, () => answer.arrayBuffer()));
  }

  /** The body of a success piece by piece. Throws AgentboxError, also for a connection that is cut. */
  async *stream(operation: Operation, call: Call = {}): AsyncGenerator<Uint8Array, void> {
    yield* this.pieces(operation, await this.send(operation, call), call);
  }

  /** The body of an answer piece by piece. Throws AgentboxConnectionError for a connection that is cut. */
  async *pieces(operation: Operation, answer: Response, call: Call = {}): AsyncGenerator<Uint8Array, void> {
    if (answer.body === null) return;
    try {
      yield* answer.body;
    } catch (error) {
      throw this.#cut(operation, call, error);
    }
  }

  /** An answer below 400, whose body is still to be read. Throws AgentboxError. */
  async send(operation: Operation, call: Call = {}): Promise<Response> {
    let left = this.#options.retries ?? 0;
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#once(operation, call);
      } catch (error) {
        call.signal?.throwIfAborted();
        if (left-- <= 0 || !mayRepeat(operation, call, error)) throw error;
        await pause(waitSeconds(error, attempt), call.signal);
      }
    }
  }

  async #once(operation: Operation, call: Call): Promise<Response> {
    const { method, path } = ROUTES[operation];
    const what = call.what ?? operation;
    const address = this.url + addressed(path, call);
    const seconds = call.timeoutSeconds ?? this.#options.requestTimeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS;
    const late = new AbortController();
    const timer = setTimeout(
      () => late.abort(new AgentboxTimeoutError(`${what}: no answer within ${seconds} seconds`)),
      seconds * 1000,
    );
    try {
      const answer = await (this.#options.fetch ?? fetch)(address, {
        method,
        redirect: "error",
        signal: call.signal ? AbortSignal.any([call.signal, late.signal]) : late.signal,
        ...this.#content(call),
      });
      if (answer.status < 400) return answer;
      throw errorOf(what, answer.status, await answer.text(), answer.headers.get("retry-after"));
    } catch (error) {
      throw this.#cut(operation, call, error);
    } finally {
      clearTimeout(timer);
    }
  }

  #content(call: Call): RequestInit {
    const headers: Record<string, string> = { ...call.headers };
    if (this.#options.apiKey) headers["authorization"] = `Bearer ${this.#options.apiKey}`;
    if (call.accept) headers["accept"] = call.accept;
    if (call.json !== undefined) {
      return { headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(call.json) };
    }
    if (call.bytes === undefined) return { headers };
    headers["content-type"] = call.contentType ?? "application/octet-stream";
    const streamed = call.bytes instanceof ReadableStream ? { duplex: "half" as const } : {};
    return { headers, body: call.bytes as NonNullable<RequestInit["body"]>, ...streamed };
  }

  async #body<T>(operation: Operation, call: Call, read: () => Promise<T>): Promise<T> {
    try {
      return await read();
    } catch (error) {
      throw this.#cut(operation, call, error);
    }
  }

  /** What to throw for a failure of the platform's. */
  #cut(operation: Operation, call: Call, error: unknown): unknown {
    if (call.signal?.aborted) return call.signal.reason;
    if (error instanceof AgentboxTimeoutError || error instanceof AgentboxHTTPError) return error;
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
    return new AgentboxConnectionError(`${call.what ?? operation} failed: ${this.url}: ${cause}`, { cause: error });
  }
}

/** The path of a call with its names and query. Throws TypeError for a name that would change the path. */
function addressed(path: string, call: Call): string {
  const named = path.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = call.path?.[name];
    if (name === "tool" && value && !/^\.*$/.test(value)) return encodeURIComponent(value);
    if (!value || !/^[A-Za-z0-9_-]+$/.test(value)) throw new TypeError(`not a ${name}: ${JSON.stringify(value)}`);
    return value;
  });
  const query: string[] = [];
  for (const [name, value] of Object.entries(call.query ?? {})) {
    if (value !== undefined) query.push(`${name}=${value instanceof Uint8Array ? percent(value) : encodeURIComponent(value)}`);
  }
  return query.length > 0 ? `${named}?${query.join("&")}` : named;
}

function percent(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => `%${byte.toString(16).padStart(2, "0").toUpperCase()}`).join("");
}

/** Only what cannot happen twice: what the server refused before it did anything, and what changes nothing when repeated. */
function mayRepeat(operation: Operation, call: Call, error: unknown): boolean {
  if (call.bytes instanceof ReadableStream) return false;
  if (error instanceof OverloadedError) return true;
  if (!(call.repeat ?? IDEMPOTENT.has(ROUTES[operation].method))) return false;
  if (error instanceof AgentboxHTTPError) return PASSING.has(error.status);
  return error instanceof AgentboxConnectionError;
}

function waitSeconds(error: unknown, attempt: number): number {
  const told = error instanceof AgentboxHTTPError ? error.retryAfterSeconds : undefined;
  // Not all who were refused together come back together.
  return (told ?? FIRST_PAUSE_SECONDS * 2 ** attempt) * (1 + Math.random() / 4);
}

/** Wait. Throws the reason of a signal that is aborted meanwhile. */
export async function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    const over = () => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    };
    const timer = setTimeout(over, seconds * 1000);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    if (signal?.aborted) aborted();
    else signal?.addEventListener("abort", aborted, { once: true });
  });
}
