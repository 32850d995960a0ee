// SPDX-License-Identifier: MIT
// What the package gives.

export { AgentboxClient } from "./client.js";
export { Command, type CommandEvent, type Excerpt, type Pieces, type StreamName } from "./command.js";
export { type CallOptions, type ConnectionOptions, DEFAULT_URL } from "./connection.js";
export type { Content } from "./content.js";
export * from "./errors.js";
export { type FileInfo, type FileOptions, type FilePath, Files } from "./files.js";
export type { HealthAnswer, Replay, RunBody, RunResult, Sandbox as SandboxInfo, Snapshot } from "./generated.js";
export {
  type Language,
  type OutputEvent,
  type QueuedEvent,
  type ResultEvent,
  RunAnswer,
  type RunEvent,
  type RunOptions,
} from "./run.js";
export { type CommandOptions, Sandbox, type SandboxOptions, type ServerOptions } from "./sandbox.js";
export { type Tool, TOOLS } from "./tools.js";
