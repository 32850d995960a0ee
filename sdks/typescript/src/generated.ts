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
} as const;

/** Name of an operation. */
export type Operation = keyof typeof ROUTES;
