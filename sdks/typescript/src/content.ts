// SPDX-License-Identifier: MIT
// Text and bytes on their way into JSON and out of it.

import { Buffer } from "node:buffer";

import type { EncodedContent } from "./generated.js";

/** Text, or bytes as they are. */
export type Content = string | Uint8Array;

/** Content as the API takes it. */
export function encoded(content: Content): string | EncodedContent {
  return typeof content === "string" ? content : { base64: toBase64(content) };
}

/** Bytes as standard base64. */
export function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}

/** Bytes of standard base64. */
export function fromBase64(text: string): Uint8Array {
  return new Uint8Array(Buffer.from(text, "base64"));
}

/** Bytes of text. */
export function bytesOf(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

/** Bytes of a message that has them as `text` or, where they are not UTF-8, as `b64`. */
export function bytesOfMessage(message: { text?: string; b64?: string }): Uint8Array {
  return message.b64 === undefined ? bytesOf(message.text ?? "") : fromBase64(message.b64);
}

/** Bytes as text; what is not UTF-8 in them is replaced. */
export function textOf(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes);
}

/** An object without the entries that are undefined, as JSON and exact optional types want it. */
export function given<T extends object>(values: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>;
  };
}
