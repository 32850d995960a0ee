// SPDX-License-Identifier: MIT
// A command of a sandbox: waited for, read, given input, ended.

import type { CallOptions, Connection } from "./connection.js";
import { bytesOfMessage, type Content, textOf } from "./content.js";
import { AgentboxConnectionError, errorOfBody } from "./errors.js";
import { messages } from "./events.js";
import type { Command as Told, CommandResult, SignalBody, Survivors } from "./generated.js";

/** One question to the server takes no longer: what is between may end a connection on which nothing moves. */
export const LONGEST_WAIT_SECONDS = 25;
const READ_BYTES = 4 << 20;

/** Which of a command's two streams. */
export type StreamName = "stdout" | "stderr";

/** Some of a command's output: `offset` is where it begins, which is later than asked where the server kept no more. */
export interface Excerpt {
  offset: number;
  data: Uint8Array;
  /** How much the command has written so far. */
  total: number;
  /** Whether nothing more will come. */
  closed: boolean;
}

/** Output as it happens; `text` is `data` as text, what is not UTF-8 in it replaced. */
export interface CommandEvent {
  kind: StreamName;
  offset: number;
  data: Uint8Array;
  text: string;
}

/** Input of a command or content of a file, also piece by piece. */
export type Pieces = Content | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;

/** The bytes of content as a request has them. */
export function requestBytes(pieces: Pieces): Uint8Array | ReadableStream<Uint8Array> {
  if (typeof pieces === "string") return new TextEncoder().encode(pieces);
  if (pieces instanceof Uint8Array || pieces instanceof ReadableStream) return pieces;
  return ReadableStream.from(pieces);
}

/** A command of a sandbox. What it says of itself is what the server said last: `refresh` and `wait` ask again. */
export class Command {
  readonly #connection: Connection;
  readonly #path: { sandbox_id: string; command_id: string };
  readonly #whole: Partial<Record<StreamName, Uint8Array>> = {};
  #told: Told;

  /** Commands come from a sandbox's `exec`, `start` and `commands`. */
  constructor(connection: Connection, sandboxId: string, told: Told | CommandResult) {
    this.#connection = connection;
    this.#path = { sandbox_id: sandboxId, command_id: told.id };
    this.#told = told;
    if ("stdout" in told) {
      this.#keep("stdout", told.stdout, told.stdout_b64, told.stdout_truncated);
      this.#keep("stderr", told.stderr, told.stderr_b64, told.stderr_truncated);
    }
  }

  get id(): string {
    return this.#told.id;
  }

  get argv(): readonly string[] {
    return this.#told.argv;
  }

  get running(): boolean {
    return this.#told.running;
  }

  /** 128 + n after signal n; null while it runs. */
  get exitCode(): number | null {
    return this.#told.exit_code;
  }

  /** The signal that ended it. */
  get signal(): number | null {
    return this.#told.signal;
  }

  /** Whether its timeout ended it. */
  get timedOut(): boolean {
    return this.#told.timed_out;
  }

  /** Why its end is not known, such as a box that was made anew. */
  get lost(): string | null {
    return this.#told.lost;
  }

  /** Whether it ended by itself with exit code 0. */
  get ok(): boolean {
    return this.exitCode === 0;
  }

  /** All that the server said of it. */
  get info(): Readonly<Told> {
    return this.#told;
  }

  /** Ask the server how it stands; `waitSeconds` lets the server wait for its end, at most 25 seconds. */
  async refresh(options: CallOptions & { waitSeconds?: number } = {}): Promise<this> {
    const { waitSeconds, ...call } = options;
    const query = { wait_seconds: waitSeconds && seconds(Math.min(waitSeconds, LONGEST_WAIT_SECONDS)) };
    this.#told = await this.#connection.json("get_command", { ...call, path: this.#path, query });
    return this;
  }

  /** Wait for its end, at most so many seconds; whether it has ended. Aborting ends the waiting, not the command. */
  async wait(limitSeconds = Number.POSITIVE_INFINITY, call: CallOptions = {}): Promise<boolean> {
    const end = performance.now() + limitSeconds * 1000;
    while (this.running) {
      const left = (end - performance.now()) / 1000;
      if (left <= 0) break;
      await this.refresh({ ...call, waitSeconds: left });
    }
    return !this.running;
  }

  /** All that is kept of its output so far, as bytes. */
  async output(stream: StreamName = "stdout", call: CallOptions = {}): Promise<Uint8Array> {
    const whole = this.#whole[stream];
    if (whole !== undefined && this.#told.closed) return whole;
    const pieces: Uint8Array[] = [];
    let offset = 0;
    for (;;) {
      const { data, offset: begin, total } = await this.read({ ...call, stream, offset, limit: READ_BYTES });
      pieces.push(data);
      offset = begin + data.length;
      if (data.length === 0 || offset >= total) return joined(pieces);
    }
  }

  /** All that is kept of its standard output so far, as text; stderr is in it unless the two were kept apart. */
  async stdout(call: CallOptions = {}): Promise<string> {
    return textOf(await this.output("stdout", call));
  }

  /** All that is kept of its standard error so far, as text. */
  async stderr(call: CallOptions = {}): Promise<string> {
    return textOf(await this.output("stderr", call));
  }

  /** Some of its output from an offset on; `waitSeconds` lets the server wait until there is some, at most 25 seconds. */
  async read(
    options: CallOptions & { stream?: StreamName; offset?: number; limit?: number; waitSeconds?: number } = {},
  ): Promise<Excerpt> {
    const { stream, offset, limit, waitSeconds, ...call } = options;
    const wait = waitSeconds && seconds(Math.min(waitSeconds, LONGEST_WAIT_SECONDS));
    const query = { stream, offset, limit, wait_seconds: wait };
    const answer = await this.#connection.send("read_output", { ...call, path: this.#path, query });
    const data = await this.#connection.bytes("read_output", answer, call);
    const header = (name: string) => answer.headers.get(`x-agentbox-${name}`) ?? "";
    return {
      offset: Number(header("offset")),
      data,
      total: Number(header("total")),
      closed: header("closed") === "true",
    };
  }

  /** Wait until a stream is longer than `offset`, or never will be; whether it is. */
  async more(offset: number, stream: StreamName = "stdout", call: CallOptions = {}): Promise<boolean> {
    for (;;) {
      const found = await this.read({ ...call, stream, offset, limit: 1, waitSeconds: LONGEST_WAIT_SECONDS });
      if (found.total > offset) return true;
      if (found.closed) return false;
    }
  }

  /**
   * Its output as it happens, from the offsets on, until it has ended, or with `untilClosed` until nobody holds its
   * output any more. A stream that is cut goes on where it was, as often as the client may repeat a request.
   */
  async *stream(
    options: CallOptions & { offset?: number; stderrOffset?: number; untilClosed?: boolean } = {},
  ): AsyncGenerator<CommandEvent, void> {
    const { offset = 0, stderrOffset = 0, untilClosed, ...call } = options;
    const query = { offset, stderr_offset: stderrOffset, until: untilClosed ? "closed" : undefined };
    let last = "";
    let left = this.#connection.options.retries ?? 0;
    for (;;) {
      try {
        const headers: Record<string, string> = last ? { "last-event-id": last } : {};
        const asked = { ...call, path: this.#path, query, headers, accept: "text/event-stream" };
        const answer = await this.#connection.send("read_output", asked);
        for await (const message of messages(this.#connection.pieces("read_output", answer, call))) {
          last = message.id;
          left = this.#connection.options.retries ?? 0;
          const found = JSON.parse(message.data);
          if (message.event === "exit") {
            this.#told = found;
            return;
          }
          if (message.event === "error") throw errorOfBody("read_output", found.status ?? 500, found);
          if (message.event !== "stdout" && message.event !== "stderr") continue;
          const data = bytesOfMessage(found);
          yield { kind: message.event, offset: found.offset, data, text: found.text ?? textOf(data) };
        }
        throw new AgentboxConnectionError("read_output failed: the stream ended before the command");
      } catch (error) {
        if (!(error instanceof AgentboxConnectionError) || left-- <= 0) throw error;
      }
    }
  }

  /** Write to its stdin, which was opened for that; waits while it does not read. */
  async send(input: Pieces, call: CallOptions = {}): Promise<void> {
    await this.#connection.done("write_stdin", { ...call, path: this.#path, bytes: requestBytes(input) });
  }

  /** It reads the end of file after what was sent. */
  async closeStdin(call: CallOptions = {}): Promise<void> {
    const query = { close: true };
    await this.#connection.done("write_stdin", { ...call, path: this.#path, query, bytes: new Uint8Array() });
  }

  /** End it with everything that it started: TERM, and KILL after `graceSeconds`. How many processes are left. */
  async kill(options: CallOptions & { graceSeconds?: number } = {}): Promise<number> {
    const { graceSeconds, ...call } = options;
    const json = graceSeconds === undefined ? {} : { grace_seconds: graceSeconds };
    const { survivors } = await this.#connection.json<Survivors>("kill_command", { ...call, path: this.#path, json });
    await this.refresh(call);
    return survivors;
  }

  /** Send a signal, such as SIGINT, to its process group. */
  async sendSignal(signal: SignalBody["signal"], call: CallOptions = {}): Promise<void> {
    await this.#connection.done("signal_command", { ...call, path: this.#path, json: { signal } });
  }

  /** Change the size of its terminal. */
  async resize(rows: number, columns: number, call: CallOptions = {}): Promise<void> {
    await this.#connection.done("resize_terminal", { ...call, path: this.#path, json: { rows, columns } });
  }

  #keep(stream: StreamName, text: string, encoded: string | null, truncated: boolean): void {
    if (!truncated) this.#whole[stream] = bytesOfMessage(encoded === null ? { text } : { b64: encoded });
  }
}

/** Seconds as a query has them. */
function seconds(value: number): string {
  return value.toFixed(3);
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  if (pieces.length === 1) return pieces[0] as Uint8Array;
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
