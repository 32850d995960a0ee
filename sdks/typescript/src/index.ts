// SPDX-License-Identifier: MIT
// What the package gives.

export { AgentboxClient } from "./client.js";
export { type CallOptions, type ConnectionOptions, DEFAULT_URL } from "./connection.js";
export type { Content } from "./content.js";
export * from "./errors.js";
export type { HealthAnswer, Replay, RunBody, RunResult, Snapshot } from "./generated.js";
export {
  type Language,
  type OutputEvent,
  type QueuedEvent,
  type ResultEvent,
  RunAnswer,
  type RunEvent,
  type RunOptions,
} from "./run.js";
