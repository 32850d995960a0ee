// SPDX-License-Identifier: MIT
// The servers that the tests speak to; they are started by tests/integration/test_typescript_sdk.py.

import { AgentboxClient, type ConnectionOptions } from "../src/index.js";

function named(variable: string): string {
  const value = process.env[variable];
  if (!value) throw new Error(`${variable} is not set: tests/integration/test_typescript_sdk.py starts these tests`);
  return value;
}

/** A server with default settings. */
export const url = named("AGENTBOX_TEST_URL");
/** A server that needs a key, has one place and lets one run wait. */
export const narrowUrl = named("AGENTBOX_TEST_NARROW_URL");
/** Keys of two callers of the narrow server. */
export const keys = named("AGENTBOX_TEST_KEYS").split(",");
/** The words of the command `agentbox`. */
export const agentbox = named("AGENTBOX_TEST_COMMAND").split(" ");
/** A server for sandboxes, which needs a key. */
export const keptUrl = named("AGENTBOX_TEST_KEPT_URL");
export const keptKey = named("AGENTBOX_TEST_KEPT_KEY");

export function client(options?: ConnectionOptions): AgentboxClient {
  return new AgentboxClient(url, options);
}

/** All bytes of a stream as text. */
export async function textOf(pieces: AsyncIterable<Uint8Array>): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  for await (const piece of pieces) text += decoder.decode(piece, { stream: true });
  return text + decoder.decode();
}
