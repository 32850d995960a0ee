// SPDX-License-Identifier: MIT
// Runs, snapshots and traces of one server.

import { type CallOptions, Connection, type ConnectionOptions, DEFAULT_URL } from "./connection.js";
import { AgentboxConnectionError, errorOfBody } from "./errors.js";
import type { HealthAnswer, ListSnapshotsAnswer, Replay, Snapshot } from "./generated.js";
import { type Language, RunAnswer, type RunEvent, runBody, runEvents, type RunOptions } from "./run.js";

/** A caller of one server. It holds nothing that must be closed. */
export class AgentboxClient {
  readonly connection: Connection;

  /** `url` is the address of `agentbox serve`, by default its own default. */
  constructor(url: string = DEFAULT_URL, options: ConnectionOptions = {}) {
    this.connection = new Connection(url, options);
  }

  /** Address of the server, without a slash at its end. */
  get url(): string {
    return this.connection.url;
  }

  /** `status`, `version` and `backend` of the server; for a caller with a key also `runs`, at work and waiting. */
  async health(call: CallOptions = {}): Promise<HealthAnswer> {
    return this.connection.json("health", call);
  }

  /**
   * Execute code and wait for its end. Aborting the signal ends the run.
   *
   * A program that fails is an answer, not an error: see `outcome` and `exit_code`. Throws RunTimedOutError, with all
   * that is known as its `result`, and the other errors of this package.
   */
  run(code: string, options?: RunOptions & CallOptions): Promise<RunAnswer>;
  run(code: string, language?: Language | (string & {}), timeoutSeconds?: number, memoryMb?: number): Promise<RunAnswer>;
  async run(
    code: string,
    second: (RunOptions & CallOptions) | string = {},
    timeoutSeconds?: number,
    memoryMb?: number,
  ): Promise<RunAnswer> {
    const options = typeof second === "string" ? { language: second, timeoutSeconds, memoryMb } : second;
    // A stream begins at once and has a heartbeat: no proxy and no limit of the platform's ends a long wait.
    const { events, requestId } = await this.#begin(code, options);
    for await (const event of events) {
      if (event.kind === "result") return answered(event.result, requestId);
    }
    throw new AgentboxConnectionError("run failed: the stream ended before its result");
  }

  /**
   * Execute code and yield output as it happens, then one event of kind `result`, also after a timeout. Leaving the
   * loop early, or aborting the signal, ends the run.
   */
  async *stream(code: string, options: RunOptions & CallOptions = {}): AsyncGenerator<RunEvent, void> {
    yield* (await this.#begin(code, options)).events;
  }

  async #begin(code: string, options: RunOptions & CallOptions) {
    const call = options.signal ? { signal: options.signal } : {};
    const json = runBody(code, options);
    const answer = await this.connection.send("run", { ...call, json, accept: "text/event-stream" });
    return {
      events: runEvents(this.connection.pieces("run", answer, call)),
      requestId: answer.headers.get("x-request-id") ?? "",
    };
  }

  /** This key's snapshots. */
  async snapshots(call: CallOptions = {}): Promise<Snapshot[]> {
    return (await this.connection.json<ListSnapshotsAnswer>("list_snapshots", call)).snapshots;
  }

  /** What is known about one snapshot. */
  async getSnapshot(snapshotId: string, call: CallOptions = {}): Promise<Snapshot> {
    return this.connection.json("get_snapshot", { ...call, path: { snapshot_id: snapshotId } });
  }

  /** Remove one snapshot. */
  async deleteSnapshot(snapshotId: string, call: CallOptions = {}): Promise<void> {
    await this.connection.done("delete_snapshot", { ...call, path: { snapshot_id: snapshotId } });
  }

  /** The trace of a run that has ended, piece by piece; written to a file, `agentbox verify` takes it. */
  trace(runId: string, call: CallOptions = {}): AsyncGenerator<Uint8Array, void> {
    return this.connection.stream("get_trace", { ...call, path: { run_id: runId } });
  }

  /** Run a run again that was asked for with `record`, answered from its trace, and compare. */
  async replay(runId: string, call: CallOptions = {}): Promise<Replay> {
    return this.connection.json("replay_run", { ...call, path: { run_id: runId } });
  }

  /** The key that verifies the server's traces, as PEM text for `agentbox verify --key`. */
  async publicKey(call: CallOptions = {}): Promise<string> {
    return this.connection.text("get_key", call);
  }
}

/** A timeout is an error here, as it is one of the API for a run that is not streamed. */
function answered(result: RunAnswer, requestId: string): RunAnswer {
  if (result.outcome !== "timed_out") return result;
  throw errorOfBody("run", 408, {
    detail: "Execution timed out",
    code: "timed_out",
    hint: "raise timeoutSeconds, or make the program do less; result holds what it did until then",
    request_id: requestId,
    result,
  });
}
