// SPDX-License-Identifier: MIT
// One run: what is asked for becomes a body, what comes back becomes an answer or events.

import { bytesOf, bytesOfMessage, type Content, encoded, fromBase64, given, textOf } from "./content.js";
import { AgentboxConnectionError, errorOfBody, type ProblemBody } from "./errors.js";
import { messages } from "./events.js";
import type { RunBody, RunResult } from "./generated.js";

/** Languages that a server may have an interpreter for. */
export type Language = "python" | "javascript" | "node" | "bash";

/** What a run may be given besides its code. Units stand in the names. */
export interface RunOptions {
  /** python by default. */
  language?: Language | (string & {});
  timeoutSeconds?: number | undefined;
  memoryMb?: number | undefined;
  cpus?: number;
  pids?: number;
  diskMb?: number;
  maxOutputBytes?: number;
  stdin?: Content;
  /** Placed into the working directory before the run: relative path to content. */
  files?: Record<string, Content>;
  env?: Record<string, string>;
  args?: readonly string[];
  /** Patterns (`*`, `?`, `**`) of files to bring back. */
  returnFiles?: readonly string[];
  /** Keep the working directory afterwards: the answer has its `snapshot_id`. */
  snapshot?: boolean;
  /** Start from this snapshot. */
  snapshotId?: string;
  backend?: string;
  /** Hosts that may be reached, as far as the operator permits it. */
  egressAllowlist?: readonly string[];
  /** Text of a policy that narrows what the program may touch. */
  policy?: string;
  /** Record a trace. */
  trace?: boolean;
  /** Record a trace that can be replayed. */
  record?: boolean;
}

/** The JSON of a run: code and language always, of the rest only what was given. */
export function runBody(code: string, options: RunOptions): RunBody {
  const limits = given({
    timeout_seconds: options.timeoutSeconds,
    memory_mb: options.memoryMb,
    cpus: options.cpus,
    pids: options.pids,
    disk_mb: options.diskMb,
    max_output_bytes: options.maxOutputBytes,
  });
  const files = options.files && Object.entries(options.files).map(([path, content]) => [path, encoded(content)]);
  return {
    code,
    language: options.language ?? "python",
    ...given({
      limits: Object.keys(limits).length > 0 ? limits : undefined,
      snapshot: options.snapshot,
      snapshot_id: options.snapshotId,
      egress_allowlist: options.egressAllowlist && [...options.egressAllowlist],
      stdin: options.stdin === undefined ? undefined : encoded(options.stdin),
      files: files && (Object.fromEntries(files) as NonNullable<RunBody["files"]>),
      env: options.env,
      args: options.args && [...options.args],
      backend: options.backend,
      return_files: options.returnFiles && [...options.returnFiles],
      policy: options.policy,
      trace: options.trace,
      record: options.record,
    }),
  };
}

// The fields of the server's answer are those of RunAnswer too.
export interface RunAnswer extends RunResult {}

/** The server's answer to a run, with its fields as they are in the API, and a few ways to read them. */
export class RunAnswer {
  constructor(result: RunResult) {
    Object.assign(this, result);
  }

  /** Whether the program ended by itself with exit code 0. */
  get ok(): boolean {
    return this.exit_code === 0 && this.outcome === "exited";
  }

  /** Standard output as the program wrote it. */
  stdoutData(): Uint8Array {
    return this.stdout_base64 === null ? bytesOf(this.stdout) : fromBase64(this.stdout_base64);
  }

  /** Standard error as the program wrote it. */
  stderrData(): Uint8Array {
    return this.stderr_base64 === null ? bytesOf(this.stderr) : fromBase64(this.stderr_base64);
  }

  /** A file that `returnFiles` brought back. Throws RangeError for one that it did not. */
  fileData(path: string): Uint8Array {
    const file = this.files[path];
    if (file === undefined) throw new RangeError(`no file ${JSON.stringify(path)} was brought back`);
    return fromBase64(file.base64);
  }
}

/** Output of a run as it happens. `text` is `data` as text, what is not UTF-8 in it replaced. */
export interface OutputEvent {
  kind: "stdout" | "stderr";
  /** Counts the events of both streams from 1. */
  seq: number;
  data: Uint8Array;
  text: string;
}

/** The run waits for a place; `waiting` is how many do, with this one. */
export interface QueuedEvent {
  kind: "queued";
  waiting: number;
}

/** The end of a run, also after a timeout: `result.outcome` says how it ended. */
export interface ResultEvent {
  kind: "result";
  result: RunAnswer;
}

/** What a run that is streamed yields; the result comes last. */
export type RunEvent = OutputEvent | QueuedEvent | ResultEvent;

/** The events of a run's stream. Throws AgentboxHTTPError at an error, AgentboxConnectionError without a result. */
export async function* runEvents(body: AsyncIterable<Uint8Array>): AsyncGenerator<RunEvent, void> {
  for await (const message of messages(body)) {
    const found = JSON.parse(message.data);
    switch (message.event) {
      case "stdout":
      case "stderr": {
        const data = bytesOfMessage(found);
        yield { kind: message.event, seq: found.seq, data, text: found.text ?? textOf(data) };
        break;
      }
      case "queued":
        yield { kind: "queued", waiting: found.waiting };
        break;
      case "error":
        throw errorOfBody("run", found.status ?? 500, found as ProblemBody);
      case "result":
        yield { kind: "result", result: new RunAnswer(found) };
        return;
    }
  }
  throw new AgentboxConnectionError("run failed: the stream ended before its result");
}
