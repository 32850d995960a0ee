// SPDX-License-Identifier: MIT
// Made by scripts/make-types.mjs from the server's OpenAPI document: do not edit.

/** Bytes as standard base64. */
export interface EncodedContent {
  base64: string;
}

/** Limits of one run. Null means the operator's default; above the operator's ceiling the ceiling applies. */
export interface LimitsBody {
  /** wall-clock seconds of the program */
  timeout_seconds?: number | string | true | null;
  /** memory in units of 2**20 bytes */
  memory_mb?: number | string | null;
  /** processors that the box may keep busy */
  cpus?: number | null;
  /** processes and threads together */
  pids?: number | null;
  /** files of the box in units of 2**20 bytes */
  disk_mb?: number | null;
  /** bytes kept of each of stdout and stderr: half from the start, half from the end */
  max_output_bytes?: number | string | null;
}

/** One execution. */
export interface RunBody {
  /** the program; it reaches the interpreter as a file */
  code: string;
  /** python, javascript, node or bash, in any case */
  language?: string;
  limits?: LimitsBody | null;
  /** keep the working directory afterwards */
  snapshot?: boolean | 0 | 1 | string;
  /** start from this snapshot; empty means none */
  snapshot_id?: string | null;
  /** `host` or `host:port`; null is the operator's list, an empty list is no network */
  egress_allowlist?: string[] | null;
  /** standard input; null is empty */
  stdin?: string | EncodedContent | null;
  /** placed into the working directory before the run: relative path to content */
  files?: Record<string, string | EncodedContent> | null;
  /** environment variables of the program */
  env?: Record<string, string> | null;
  /** arguments of the program */
  args?: string[] | null;
  /** isolation backend, of those that the operator allows */
  backend?: string | null;
  /** patterns (`*`, `?`, `**`) of files to bring back */
  return_files?: string[] | null;
  /** text of a policy that narrows what the program may touch; its paths are relative to /work */
  policy?: string | null;
  /** record a trace; a run with a policy has one anyway, and where the operator records all runs */
  trace?: boolean | 0 | 1 | string;
  /** record a trace that can be replayed; code, files, stdin and variables are kept with it then. Needs a policy, and Python or JavaScript */
  record?: boolean | 0 | 1 | string;
}

export interface Problem {
  detail: string;
  code: string;
  hint: string;
  request_id: string;
  /** with code policy_syntax */
  policy?: {
    line: number;
    column: number;
    /** a stable word for the kind of fault */
    problem: string;
    reason: string;
    /** the line, where it is short enough to be shown */
    source: string;
    /** points at the column when it is shown below source */
    caret: string;
  };
  /** of files and programs of a sandbox: ENOENT, EACCES, ... */
  errno?: string;
  /** the program that cannot be started */
  path?: string | null;
  /** as the header Retry-After */
  retry_after_seconds?: number;
  /** of a program that ran, when its files cannot be kept */
  result?: RunResult;
}

export interface TimedOut {
  detail: string;
  code: string;
  hint: string;
  request_id: string;
  result?: RunResult;
}

export interface InvalidBody {
  detail: {
    type: string;
    loc: (string | number)[];
    msg: string;
    /** what was sent, cut to a bounded size */
    input: unknown;
    ctx?: Record<string, unknown>;
  }[];
  code: string;
  hint: string;
  request_id: string;
}

export interface RunResult {
  stdout: string;
  stderr: string;
  /** 128 + n after signal n */
  exit_code: number;
  duration_ms: number;
  language: "python" | "javascript" | "bash" | "node";
  backend: string;
  snapshot_id: string | null;
  limits_applied: {
    timeout_seconds: number;
    memory_mb: number;
    cpus: number;
    pids: number;
    disk_mb: number;
    max_output_bytes: number;
  };
  oom_killed: boolean;
  network_isolated: boolean;
  egress_allowlist: string[];
  run_id: string;
  outcome: "exited" | "timed_out" | "oom_killed" | "output_limited" | "killed";
  signal: number | null;
  stdout_bytes: number;
  stderr_bytes: number;
  stdout_truncated: boolean;
  stderr_truncated: boolean;
  /** the exact bytes, only where they are not UTF-8 */
  stdout_base64: string | null;
  /** the exact bytes, only where they are not UTF-8 */
  stderr_base64: string | null;
  files: Record<string, {
    base64: string;
    bytes: number;
  }>;
  enforcement: {
    /** what held filesystem */
    filesystem: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held network */
    network: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held exec */
    exec: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held memory */
    memory: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held pids */
    pids: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held cpu */
    cpu: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what held disk */
    disk: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
  };
  warnings: string[];
  timings: {
    /** waiting for a place; 0 where one was free */
    queued_ms: number;
    start_ms: number;
    run_ms: number;
    /** what was ready before: box and interpreter, an interpreter that forked into a new box, the view of a new box, nothing */
    start: "warm" | "forked" | "made" | "cold";
  };
  usage: {
    cpu_ms: number | null;
    max_memory_bytes: number | null;
    processes: number | null;
  };
  /** what the policy did not allow; the first ones, the rest is in the trace */
  denials: {
    /** what held it */
    layer: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    effect: "read" | "write" | "net" | "exec" | "env";
    /** a file, host, program's file or variable's name */
    target: string;
    reason: string;
    /** the rule that denies it */
    rule: string | null;
    /** a rule that would allow it */
    rule_missing: string | null;
    /** its record in the trace */
    trace_index: number;
    /** what would help */
    hint: string;
  }[];
  /** records of the sealed trace, and the hash of the last one; null without a trace */
  trace: {
    count: number;
    sha: string;
  } | null;
  /** what went through the gateway, by host */
  egress: Record<string, {
    connections: number;
    bytes_up: number;
    bytes_down: number;
  }>;
}

export interface Replay {
  /** whether everything was as it was recorded */
  ok: boolean;
  /** false when something did not fit before */
  started: boolean;
  /** recorded steps that happened again */
  matched: number;
  /** recorded steps */
  total: number;
  /** of the replayed program; null when it was ended */
  exit_code: number | null;
  divergences: {
    kind: "trace" | "policy" | "command" | "interpreter" | "input" | "different" | "new" | "missing" | "denial" | "unanswerable" | "exit_code" | "output" | "file";
    /** the record of the trace that was expected */
    step: number;
    message: string;
    /** the thread or task */
    lane: string;
    /** what was recorded */
    expected: Record<string, unknown> | null;
    /** what came */
    observed: Record<string, unknown> | null;
    /** where the program stood */
    file: string | null;
    line: number | null;
    /** lines of a unified diff */
    diff: string[];
  }[];
  notes: string[];
  /** empty: it is at /v1/runs/{run_id}/trace */
  trace: string;
}

export interface Snapshot {
  snapshot_id: string;
  /** seconds since 1970, UTC */
  created_at: number;
  packed_bytes: number;
  unpacked_bytes: number | null;
  entries: number | null;
}

/** A directory to be made, with its parents. */
export interface DirectoryBody {
  path: string;
  /** permission bits as octal digits; 0755 when it is not said */
  mode?: string | null;
}

/** A command that is waited for. */
export interface ExecBody {
  /** text for the box's shell, or a list of words */
  command: string | string[];
  /** what it reads, as text */
  stdin?: string | null;
  /** what it reads, as base64; not beside stdin */
  stdin_b64?: string | null;
  /** relative to /work */
  cwd?: string | null;
  /** over the sandbox's variables; null takes one out */
  env?: Record<string, string | null> | null;
  user?: "agent" | "root" | null;
  /** it is ended after so long */
  timeout_seconds?: number | null;
  /** whether stderr goes to stdout */
  merged?: boolean;
  /** rows and columns of a terminal of its own */
  terminal?: number[] | null;
  /** the answer comes after so long at the latest; null waits for the end */
  wait_seconds?: number | null;
}

/** How many sandboxes are made of one. */
export interface ForkBody {
  /** 1 when it is not said */
  count?: number | null;
}

/** How a command is ended. */
export interface KillBody {
  /** between TERM and KILL; 5 when it is not said */
  grace_seconds?: number | null;
}

/** Something that gets another name. */
export interface MoveBody {
  path: string;
  to: string;
}

/** The size of a terminal. */
export interface ResizeBody {
  rows: number;
  columns: number;
}

/** Which snapshot the workspace becomes. */
export interface RestoreBody {
  snapshot_id: string;
}

/** A sandbox as it is asked for. Null means the default; above the operator's ceiling the ceiling applies. */
export interface SandboxBody {
  /** isolation backend, of those that the operator allows */
  backend?: string | null;
  /** of backends that have images */
  image?: string | null;
  /** of everything in it, in units of 2**20 bytes */
  memory_mb?: number | null;
  /** processors that it may keep busy */
  cpus?: number | null;
  /** processes and threads together */
  pids?: number | null;
  /** its workspace, in units of 2**20 bytes */
  disk_mb?: number | null;
  /** bytes of each stream in the answer of exec: half from the start, half from the end */
  max_output_bytes?: number | null;
  /** who its commands are */
  user?: "agent" | "root" | null;
  /** variables of every command */
  env?: Record<string, string> | null;
  /** text of a policy, with `net:` rules */
  policy?: string | null;
  /** name of a workspace of this key that is kept when the sandbox is deleted */
  workspace?: string | null;
  /** what a new workspace begins with */
  snapshot_id?: string | null;
  /** unused for so long it loses its box */
  idle_timeout_seconds?: number | null;
  /** so long after its start it loses its box */
  max_lifetime_seconds?: number | null;
  /** how long the tools for models wait when a call does not say */
  exec_timeout_seconds?: number | null;
}

/** A signal for the process group of a command. */
export interface SignalBody {
  /** its name, such as SIGINT */
  signal: "SIGABRT" | "SIGALRM" | "SIGBUS" | "SIGCHLD" | "SIGCONT" | "SIGFPE" | "SIGHUP" | "SIGILL" | "SIGINT" | "SIGIO" | "SIGKILL" | "SIGPIPE" | "SIGPROF" | "SIGPWR" | "SIGQUIT" | "SIGSEGV" | "SIGSTKFLT" | "SIGSTOP" | "SIGSYS" | "SIGTERM" | "SIGTRAP" | "SIGTSTP" | "SIGTTIN" | "SIGTTOU" | "SIGURG" | "SIGUSR1" | "SIGUSR2" | "SIGVTALRM" | "SIGWINCH" | "SIGXCPU" | "SIGXFSZ";
}

/** A snapshot of a workspace. */
export interface SnapshotBody {
  /** with a name it outlives the sandbox */
  name?: string | null;
  /** whether it outlives the sandbox in any case */
  keep?: boolean | null;
}

/** A command that is only started. */
export interface StartBody {
  /** text for the box's shell, or a list of words */
  command: string | string[];
  /** what it reads, as text */
  stdin?: string | null;
  /** what it reads, as base64; not beside stdin */
  stdin_b64?: string | null;
  /** relative to /work */
  cwd?: string | null;
  /** over the sandbox's variables; null takes one out */
  env?: Record<string, string | null> | null;
  user?: "agent" | "root" | null;
  /** it is ended after so long */
  timeout_seconds?: number | null;
  /** whether stderr goes to stdout */
  merged?: boolean;
  /** rows and columns of a terminal of its own */
  terminal?: number[] | null;
  /** whether its input stays open for .../stdin */
  open_stdin?: boolean;
}

export interface Sandbox {
  id: string;
  backend: string;
  image: string | null;
  user: string;
  status: "running" | "paused" | "gone";
  why_gone: string;
  /** its name; null for one that goes with the sandbox */
  workspace: string | null;
  /** seconds since 1970, UTC */
  created_at: number;
  /** seconds since 1970, UTC */
  last_used_at: number;
  /** how often its box was made anew around its workspace */
  rebuilt: number;
  limits: {
    memory_mb: number;
    cpus: number;
    pids: number;
    disk_mb: number;
    max_output_bytes: number;
  };
  idle_timeout_seconds: number | null;
  max_lifetime_seconds: number | null;
  enforcement: {
    /** what holds filesystem */
    filesystem: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds network */
    network: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds exec */
    exec: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds memory */
    memory: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds pids */
    pids: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds cpu */
    cpu: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    /** what holds disk */
    disk: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
  };
  policy_sha256: string | null;
  /** what was refused, the last hundred */
  denials: {
    /** what held it */
    layer: "vm" | "kernel" | "gateway" | "supervisor" | "interpreter" | "none";
    effect: "read" | "write" | "net" | "exec" | "env";
    /** a file, host, program's file or variable's name */
    target: string;
    reason: string;
    /** the rule that denies it */
    rule: string | null;
    /** a rule that would allow it */
    rule_missing: string | null;
    /** its record in the trace */
    trace_index: number;
    /** what would help */
    hint: string;
  }[];
  /** what of the policy holds in part only */
  warnings: string[];
}

export interface Sandboxes {
  sandboxes: Sandbox[];
}

export interface Command {
  id: string;
  argv: string[];
  /** whether stderr goes to stdout */
  merged: boolean;
  /** whether nothing more of its output will come */
  closed: boolean;
  running: boolean;
  pid: number | null;
  /** 128 + n after signal n; null while it runs */
  exit_code: number | null;
  signal: number | null;
  timed_out: boolean;
  /** why its end is not known */
  lost: string | null;
  elapsed_seconds: number;
  cpu_ms: number | null;
  max_memory_bytes: number | null;
  /** seconds since 1970, UTC */
  started_at: number;
  stdout_bytes: number;
  stderr_bytes: number;
}

export interface Commands {
  commands: Command[];
}

export interface CommandResult {
  id: string;
  argv: string[];
  /** whether stderr goes to stdout */
  merged: boolean;
  /** whether nothing more of its output will come */
  closed: boolean;
  running: boolean;
  pid: number | null;
  /** 128 + n after signal n; null while it runs */
  exit_code: number | null;
  signal: number | null;
  timed_out: boolean;
  /** why its end is not known */
  lost: string | null;
  elapsed_seconds: number;
  cpu_ms: number | null;
  max_memory_bytes: number | null;
  /** seconds since 1970, UTC */
  started_at: number;
  stdout_bytes: number;
  stderr_bytes: number;
  /** beginning and end where there is more than max_output_bytes */
  stdout: string;
  /** the exact bytes, only where they are not UTF-8 */
  stdout_b64: string | null;
  stdout_truncated: boolean;
  /** beginning and end where there is more than max_output_bytes */
  stderr: string;
  /** the exact bytes, only where they are not UTF-8 */
  stderr_b64: string | null;
  stderr_truncated: boolean;
}

export interface Survivors {
  /** processes that are left, 0 as a rule */
  survivors: number;
}

export interface ToolResult {
  /** what the model is told */
  text: string;
  /** the same as fields, of the three shell tools */
  result: {
    output: string;
    exit_code: number | null;
    status: "completed" | "running" | "killed" | "rejected";
    note: string;
    elapsed: number;
    idle: number;
    new_characters: number;
  } | null;
}

export interface SandboxSnapshot {
  snapshot_id: string;
  name: string | null;
  bytes: number;
  /** seconds since 1970, UTC */
  created_at: number;
  kept: boolean;
}

export interface SandboxSnapshots {
  snapshots: SandboxSnapshot[];
}

export interface FileInfo {
  path: string;
  /** its bytes, only where they are not UTF-8 */
  path_b64: string | null;
  kind: "file" | "directory" | "link" | "fifo" | "socket" | "device";
  size: number;
  /** permission bits as a number */
  mode: number;
  /** seconds since 1970, UTC */
  modified: number;
  uid: number;
  gid: number;
  /** of a link */
  target: string | null;
}

export interface FileList {
  entries: FileInfo[];
}

export interface HealthAnswer {
  status: "ok";
  version: string;
  backend: string;
  /** for callers with a key, if one is needed */
  runs?: {
    working: number;
    waiting: number;
  };
}

export interface ListSnapshotsAnswer {
  snapshots: Snapshot[];
}

export type CallToolBody = Record<string, unknown>;

/** Where the server answers: an operation's method and path. */
export const ROUTES = {
  /** Whether the server answers; needs no key */
  health: { method: "GET", path: "/health" },
  /** Execute code in a box */
  run: { method: "POST", path: "/v1/run" },
  /** Snapshots of this key */
  list_snapshots: { method: "GET", path: "/v1/snapshots" },
  /** One snapshot */
  get_snapshot: { method: "GET", path: "/v1/snapshots/{snapshot_id}" },
  /** Remove a snapshot */
  delete_snapshot: { method: "DELETE", path: "/v1/snapshots/{snapshot_id}" },
  /** The trace of a run of this key that has ended */
  get_trace: { method: "GET", path: "/v1/runs/{run_id}/trace" },
  /** Run it again, answered from its trace, and compare */
  replay_run: { method: "POST", path: "/v1/runs/{run_id}/replay" },
  /** The public key that verifies this server's traces */
  get_key: { method: "GET", path: "/v1/key" },
  /** Sandboxes of this key */
  list_sandboxes: { method: "GET", path: "/v1/sandboxes" },
  /** Make a sandbox */
  create_sandbox: { method: "POST", path: "/v1/sandboxes" },
  /** One sandbox */
  get_sandbox: { method: "GET", path: "/v1/sandboxes/{sandbox_id}" },
  /** End it and remove it with its files */
  delete_sandbox: { method: "DELETE", path: "/v1/sandboxes/{sandbox_id}" },
  /** Make its box anew around its workspace */
  reset_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/reset" },
  /** Stop everything in it until it is resumed */
  pause_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/pause" },
  /** Let everything in it go on */
  resume_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/resume" },
  /** Snapshots of its workspace */
  list_sandbox_snapshots: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/snapshots" },
  /** Keep what is in its workspace now */
  snapshot_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/snapshots" },
  /** Remove a snapshot */
  delete_sandbox_snapshot: { method: "DELETE", path: "/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}" },
  /** Make its workspace what a snapshot holds; everything that runs in it is ended */
  restore_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/restore" },
  /** What was done in it; a new part begins with its box, and when one has grown large */
  sandbox_trace: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/trace" },
  /** Make others like it, whose workspaces begin with what its own holds now */
  fork_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/fork" },
  /** Answer a model's call of one of its tools */
  call_tool: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/tools/{tool}" },
  /** Run a command and wait for it */
  exec_in_sandbox: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/exec" },
  /** Those that run, and the last that have ended */
  list_commands: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/commands" },
  /** Start a command */
  start_command: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/commands" },
  /** One command */
  get_command: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}" },
  /** What a command wrote */
  read_output: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}/output" },
  /** Write to its input */
  write_stdin: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}/stdin" },
  /** End it with everything that it started */
  kill_command: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}/kill" },
  /** Send a signal to its process group */
  signal_command: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}/signal" },
  /** Change the size of its terminal */
  resize_terminal: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/commands/{command_id}/resize" },
  /** A file's bytes */
  read_file: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/files" },
  /** Write a file, with its parents */
  write_file: { method: "PUT", path: "/v1/sandboxes/{sandbox_id}/files" },
  /** Remove a file, or a directory with all that is in it */
  remove_file: { method: "DELETE", path: "/v1/sandboxes/{sandbox_id}/files" },
  /** What is at a path; of a link, the link itself */
  file_info: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/files/info" },
  /** What is in a directory */
  list_files: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/files/list" },
  /** A directory as tar */
  download_directory: { method: "GET", path: "/v1/sandboxes/{sandbox_id}/files/archive" },
  /** Unpack tar into a directory, which is made */
  upload_directory: { method: "PUT", path: "/v1/sandboxes/{sandbox_id}/files/archive" },
  /** Make a directory with its parents */
  make_directory: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/files/directory" },
  /** Give something another name, over what has that name */
  move_file: { method: "POST", path: "/v1/sandboxes/{sandbox_id}/files/move" },
} as const;

/** Name of an operation. */
export type Operation = keyof typeof ROUTES;
