// SPDX-License-Identifier: MIT
// A durable box on a server: commands, files, tools for models, snapshots and forks.

import type { AgentboxClient } from "./client.js";
import { Command, LONGEST_WAIT_SECONDS } from "./command.js";
import { type CallOptions, Connection, type ConnectionOptions, DEFAULT_URL } from "./connection.js";
import { type Content, given, toBase64 } from "./content.js";
import { AgentboxError, AgentboxHTTPError, NotFoundError, SandboxGoneError } from "./errors.js";
import { Files } from "./files.js";
import type {
  Command as CommandTold,
  CommandResult,
  Commands,
  ExecBody,
  Sandbox as SandboxTold,
  SandboxBody,
  Sandboxes,
  SandboxSnapshot,
  SandboxSnapshots,
  ToolResult,
} from "./generated.js";

/** Which server, and as whom. `client` is in place of the others. */
export interface ServerOptions extends ConnectionOptions {
  url?: string;
  client?: AgentboxClient;
}

/** What a sandbox may be given. Units stand in the names; what is not said is the server's default. */
export interface SandboxOptions {
  backend?: string;
  image?: string;
  memoryMb?: number;
  cpus?: number;
  pids?: number;
  diskMb?: number;
  /** Bytes of each stream that come with the answer of `exec`; the whole output is read beside it. */
  maxOutputBytes?: number;
  user?: "agent" | "root";
  /** Variables of every command. */
  env?: Record<string, string>;
  /** Text of a policy, with `net:` rules. */
  policy?: string;
  /** Name of a workspace of this key that is kept when the sandbox is deleted. */
  workspace?: string;
  /** Begin with what a snapshot of a sandbox holds. */
  snapshotId?: string;
  idleTimeoutSeconds?: number;
  maxLifetimeSeconds?: number;
  /** How long the tools for models wait when a call does not say. */
  execTimeoutSeconds?: number;
  /** Let it stay when it is stopped. */
  keep?: boolean;
}

/** What a command may be given. */
export interface CommandOptions extends CallOptions {
  /** What it reads: all of it, then the end of file. */
  stdin?: Content;
  /** Let its input stay open for `send` and `closeStdin`. */
  openStdin?: boolean;
  /** Relative to /work. */
  cwd?: string;
  /** Over the sandbox's variables; null takes one out. */
  env?: Record<string, string | null>;
  user?: "agent" | "root";
  /** It is ended after so long. */
  timeoutSeconds?: number;
  /** Whether stderr goes to stdout, as it does unless this is false. */
  merged?: boolean;
  /** A terminal of its own. */
  terminal?: { rows: number; columns: number };
}

const MAX_INLINE_INPUT_BYTES = 1 << 16;
const NOT_RUNNING = "sandbox is not running";
/** A box may have to be built, an image be fetched. */
const LIFE_SECONDS = 290;

/**
 * A durable box of a server. `create` makes one, `attach` finds one; `stop`, or leaving an `await using` block, removes
 * one that was made here, unless it was made with `keep`.
 */
export class Sandbox {
  readonly connection: Connection;
  readonly files: Files;
  readonly #stays: boolean;
  #told: SandboxTold;
  #stopped = false;

  private constructor(connection: Connection, told: SandboxTold, stays: boolean) {
    this.connection = connection;
    this.files = new Files(connection, () => this.#path());
    this.#told = told;
    this.#stays = stays;
  }

  /** Make a box. */
  static async create(options: SandboxOptions & ServerOptions & CallOptions = {}): Promise<Sandbox> {
    const connection = connectionOf(options);
    const call = { ...signalOf(options), json: sandboxBody(options), timeoutSeconds: LIFE_SECONDS };
    return new Sandbox(connection, await connection.json("create_sandbox", call), options.keep ?? false);
  }

  /** Find a box by its id, also one that another program made. Throws SandboxGoneError where there is none. */
  static async attach(id: string, options: ServerOptions & CallOptions = {}): Promise<Sandbox> {
    const connection = connectionOf(options);
    return new Sandbox(connection, await found(connection, id, signalOf(options)), true);
  }

  /** What is known about the boxes of this key. */
  static async list(options: ServerOptions & CallOptions = {}): Promise<SandboxTold[]> {
    return (await connectionOf(options).json<Sandboxes>("list_sandboxes", signalOf(options))).sandboxes;
  }

  // ---- what there is to know

  get id(): string {
    return this.#told.id;
  }

  get backend(): string {
    return this.#told.backend;
  }

  /** Which layer holds what, in this box. */
  get enforcement(): SandboxTold["enforcement"] {
    return this.#told.enforcement;
  }

  /** What had been refused when the server was asked last; `refresh` asks. */
  get denials(): SandboxTold["denials"] {
    return this.#told.denials;
  }

  /** All that the server said of it. */
  get info(): Readonly<SandboxTold> {
    return this.#told;
  }

  /** Ask the server how it stands. Throws SandboxGoneError for a box that was deleted. */
  async refresh(call: CallOptions = {}): Promise<this> {
    this.#told = await found(this.connection, this.#path().sandbox_id, call);
    return this;
  }

  // ---- commands

  /**
   * Run a command and wait for its end, at most `waitSeconds`. `command` is text for the box's shell, or a list of words.
   * Aborting ends the waiting, not the command. Throws SandboxFileError for a program that is not there.
   */
  async exec(
    command: string | readonly string[],
    options: CommandOptions & { waitSeconds?: number } = {},
  ): Promise<Command> {
    const { waitSeconds = Number.POSITIVE_INFINITY, ...rest } = options;
    const started = performance.now();
    const begun =
      waitSeconds <= 0 || rest.openStdin || isLong(rest.stdin)
        ? await this.start(command, rest)
        : await this.#execute(command, rest, waitSeconds);
    await begun.wait(waitSeconds - (performance.now() - started) / 1000, signalOf(options));
    return begun;
  }

  async #execute(command: string | readonly string[], options: CommandOptions, waitSeconds: number): Promise<Command> {
    const path = this.#path();
    const wait = Math.min(waitSeconds, LONGEST_WAIT_SECONDS);
    const json = { ...commandBody(command, options), wait_seconds: wait };
    const told = await this.connection.json<CommandResult>("exec_in_sandbox", { ...signalOf(options), path, json });
    return new Command(this.connection, path.sandbox_id, told);
  }

  /** Start a command and return at once. */
  async start(command: string | readonly string[], options: CommandOptions = {}): Promise<Command> {
    const path = this.#path();
    const call = signalOf(options);
    const { stdin, ...rest } = options;
    const later = isLong(stdin);
    const open = options.openStdin || later;
    const json = { ...commandBody(command, later ? rest : options), ...(open ? { open_stdin: true } : {}) };
    const told = await this.connection.json<CommandTold>("start_command", { ...call, path, json });
    const begun = new Command(this.connection, path.sandbox_id, told);
    if (later) await feed(begun, stdin as Content, options.openStdin ?? false, call);
    return begun;
  }

  /** The commands that run, and the last that have ended, also those that others started. */
  async commands(call: CallOptions = {}): Promise<Command[]> {
    const path = this.#path();
    const { commands } = await this.connection.json<Commands>("list_commands", { ...call, path });
    return commands.map((told) => new Command(this.connection, path.sandbox_id, told));
  }

  /** One command by its id. */
  async command(id: string, call: CallOptions = {}): Promise<Command> {
    const path = { ...this.#path(), command_id: id };
    return new Command(this.connection, path.sandbox_id, await this.connection.json("get_command", { ...call, path }));
  }

  // ---- tools for models

  /** The answer to a model's call of a tool, one of `TOOLS` or of those that models know already. Never an error. */
  async dispatch(tool: string, input: Record<string, unknown>, call: CallOptions = {}): Promise<string> {
    if (this.#stopped) return `ERROR: ${NOT_RUNNING}`;
    try {
      const path = { ...this.#path(), tool };
      return (await this.connection.json<ToolResult>("call_tool", { ...call, path, json: input })).text;
    } catch (error) {
      if (!(error instanceof AgentboxError) || call.signal?.aborted) throw error;
      const http = error instanceof AgentboxHTTPError ? error : undefined;
      return `ERROR: ${http?.detail ?? error.message}${http?.hint ? ` (${http.hint})` : ""}`;
    }
  }

  /** Run a command as the tool of that name does; the timeout in seconds only ends the waiting. */
  async shellExec(command: string, timeout?: number, call: CallOptions = {}): Promise<string> {
    return this.dispatch("shell_exec", given({ command, timeout }), call);
  }

  /** Go on waiting for the command of `shellExec`. */
  async shellWait(timeout?: number, call: CallOptions = {}): Promise<string> {
    return this.dispatch("shell_wait", given({ timeout }), call);
  }

  /** End the command of `shellExec`. */
  async shellKill(call: CallOptions = {}): Promise<string> {
    return this.dispatch("shell_kill", {}, call);
  }

  // ---- its life

  /** The box anew, around the same workspace; what ran in it is ended. */
  async reset(call: CallOptions = {}): Promise<void> {
    const path = this.#path();
    this.#told = await this.connection.json("reset_sandbox", { ...call, path, timeoutSeconds: LIFE_SECONDS });
  }

  /** Hold everything in it still until `resume`. Throws AgentboxHTTPError where its backend cannot. */
  async pause(call: CallOptions = {}): Promise<void> {
    this.#told = await this.connection.json("pause_sandbox", { ...call, path: this.#path() });
  }

  /** Let everything in it go on. */
  async resume(call: CallOptions = {}): Promise<void> {
    this.#told = await this.connection.json("resume_sandbox", { ...call, path: this.#path() });
  }

  /** Keep what is in its workspace now. */
  async snapshot(options: CallOptions & { name?: string } = {}): Promise<SandboxSnapshot> {
    const { name, ...call } = options;
    const json = given({ name });
    return this.connection.json("snapshot_sandbox", { ...call, path: this.#path(), json, timeoutSeconds: LIFE_SECONDS });
  }

  /** Snapshots of its workspace. */
  async snapshots(call: CallOptions = {}): Promise<SandboxSnapshot[]> {
    const path = this.#path();
    return (await this.connection.json<SandboxSnapshots>("list_sandbox_snapshots", { ...call, path })).snapshots;
  }

  /** Remove a snapshot. */
  async deleteSnapshot(snapshotId: string, call: CallOptions = {}): Promise<void> {
    const path = { ...this.#path(), snapshot_id: snapshotId };
    await this.connection.done("delete_sandbox_snapshot", { ...call, path });
  }

  /** Make its workspace what a snapshot holds; everything that runs in it is ended. */
  async restore(snapshotId: string, call: CallOptions = {}): Promise<void> {
    const asked = { ...call, path: this.#path(), json: { snapshot_id: snapshotId }, timeoutSeconds: LIFE_SECONDS };
    this.#told = await this.connection.json("restore_sandbox", asked);
  }

  /** Make others like it, whose workspaces begin with what its own holds now. */
  async fork(count = 1, call: CallOptions = {}): Promise<Sandbox[]> {
    const asked = { ...call, path: this.#path(), json: { count }, timeoutSeconds: LIFE_SECONDS };
    const { sandboxes } = await this.connection.json<Sandboxes>("fork_sandbox", asked);
    return sandboxes.map((told) => new Sandbox(this.connection, told, false));
  }

  /** What was done in it, piece by piece; written to a file, `agentbox verify` takes it. */
  async *trace(call: CallOptions = {}): AsyncGenerator<Uint8Array, void> {
    yield* this.connection.stream("sandbox_trace", { ...call, path: this.#path() });
  }

  /** Remove it now, whoever made it; `keepWorkspace` leaves its files. One that is gone already is no error. */
  async delete(options: CallOptions & { keepWorkspace?: boolean } = {}): Promise<void> {
    const { keepWorkspace, ...call } = options;
    this.#stopped = true;
    const asked = { ...call, path: { sandbox_id: this.id }, query: { keep_workspace: keepWorkspace }, repeat: true };
    try {
      await this.connection.done("delete_sandbox", { ...asked, timeoutSeconds: LIFE_SECONDS });
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  /** Remove a box that was made here; one that was attached to, or made with `keep`, stays. May be called twice. */
  async stop(call: CallOptions = {}): Promise<void> {
    if (this.#stopped) return;
    this.#stopped = true;
    if (!this.#stays) await this.delete(call);
  }

  /** As `stop`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  #path(): { sandbox_id: string } {
    if (this.#stopped) throw new AgentboxError(NOT_RUNNING);
    return { sandbox_id: this.#told.id };
  }
}

function connectionOf({ client, url, ...options }: ServerOptions): Connection {
  return client?.connection ?? new Connection(url ?? DEFAULT_URL, options);
}

function signalOf({ signal }: CallOptions): CallOptions {
  return signal ? { signal } : {};
}

async function found(connection: Connection, id: string, call: CallOptions): Promise<SandboxTold> {
  try {
    return await connection.json<SandboxTold>("get_sandbox", { ...call, path: { sandbox_id: id } });
  } catch (error) {
    if (error instanceof NotFoundError) throw new SandboxGoneError("get_sandbox", 404, error.body);
    throw error;
  }
}

function sandboxBody(options: SandboxOptions): SandboxBody {
  return given({
    backend: options.backend,
    image: options.image,
    memory_mb: options.memoryMb,
    cpus: options.cpus,
    pids: options.pids,
    disk_mb: options.diskMb,
    max_output_bytes: options.maxOutputBytes,
    user: options.user,
    env: options.env,
    policy: options.policy,
    workspace: options.workspace,
    snapshot_id: options.snapshotId,
    idle_timeout_seconds: options.idleTimeoutSeconds,
    max_lifetime_seconds: options.maxLifetimeSeconds,
    exec_timeout_seconds: options.execTimeoutSeconds,
  });
}

function commandBody(command: string | readonly string[], options: CommandOptions): ExecBody {
  const { stdin, terminal } = options;
  return {
    command: typeof command === "string" ? command : [...command],
    merged: options.merged ?? true,
    ...given({
      stdin: typeof stdin === "string" ? stdin : undefined,
      stdin_b64: stdin instanceof Uint8Array ? toBase64(stdin) : undefined,
      cwd: options.cwd,
      env: options.env,
      user: options.user,
      timeout_seconds: options.timeoutSeconds,
      terminal: terminal && [terminal.rows, terminal.columns],
    }),
  };
}

function isLong(stdin: Content | undefined): boolean {
  return stdin !== undefined && stdin.length > MAX_INLINE_INPUT_BYTES;
}

/** Give a command its input; one that ended without reading it is no error. */
async function feed(command: Command, input: Content, stayOpen: boolean, call: CallOptions): Promise<void> {
  try {
    await command.send(input, call);
    if (!stayOpen) await command.closeStdin(call);
  } catch (error) {
    await command.refresh(call);
    if (command.running || !(error instanceof AgentboxHTTPError)) throw error;
  }
}
