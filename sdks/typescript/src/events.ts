// SPDX-License-Identifier: MIT
// The bytes of a text/event-stream become messages.

/** One message of a stream. */
export interface Message {
  /** Its kind, "message" where the server named none. */
  event: string;
  data: string;
  /** The last id that the server gave, "" before the first. */
  id: string;
}

/** The messages of a stream, as they come. Leaving the loop early closes the connection. */
export async function* messages(body: AsyncIterable<Uint8Array>): AsyncGenerator<Message, void> {
  let event = "";
  let id = "";
  let data: string[] = [];
  for await (const line of lines(body)) {
    if (line === "") {
      if (data.length > 0) yield { event: event || "message", data: data.join("\n"), id };
      event = "";
      data = [];
      continue;
    }
    const colon = line.indexOf(":");
    if (colon === 0) continue;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    if (name === "event") event = value;
    else if (name === "data") data.push(value);
    else if (name === "id") id = value;
  }
}

/** Whole lines of a stream, without their ends; a last line without an end is no line. */
async function* lines(body: AsyncIterable<Uint8Array>): AsyncGenerator<string, void> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of body) {
    rest += decoder.decode(bytes, { stream: true });
    let end = rest.indexOf("\n");
    let start = 0;
    while (end >= 0) {
      yield rest.slice(start, rest[end - 1] === "\r" ? end - 1 : end);
      start = end + 1;
      end = rest.indexOf("\n", start);
    }
    rest = rest.slice(start);
  }
}
