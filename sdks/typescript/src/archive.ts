// SPDX-License-Identifier: MIT
// Directories of this machine as streams of tar, made and read piece by piece: memory does not depend on their size.
//
// What comes out of a box may name what it likes: only files and directories are taken, below a new directory in which
// no link is ever made, so that no name leads anywhere else.

import { Buffer } from "node:buffer";
import { constants } from "node:fs";
import { chmod, lstat, mkdir, open, readdir } from "node:fs/promises";

import { AgentboxError } from "./errors.js";

const BLOCK = 512;
const PIECE_BYTES = 1 << 18;
const MAX_ENTRIES = 1_000_000;
const MAX_HEADER_BYTES = 1 << 20;
const MOST_LEFT_OUT = 100;
const OPEN_NEW = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
const [FILE, DIRECTORY, LONG_NAME, PAX, PAX_GLOBAL] = ["0", "5", "L", "x", "g"];

/** How much of files was given out so far. */
export interface Packed {
  bytes: number;
}

/** What was taken out of an archive, and what was left out with the reason, the first hundred. */
export interface Unpacked {
  files: number;
  bytes: number;
  leftOut: string[];
}

/** A directory as a stream of tar: its files and directories, with permission bits; links in it are left out. */
export async function* pack(directory: string, packed: Packed): AsyncGenerator<Uint8Array, void> {
  yield* packBelow(Buffer.from(directory), Buffer.alloc(0), packed);
  yield Buffer.alloc(2 * BLOCK);
}

async function* packBelow(directory: Buffer, prefix: Buffer, packed: Packed): AsyncGenerator<Uint8Array, void> {
  const found = await readdir(directory, { withFileTypes: true, encoding: "buffer" });
  for (const entry of found.sort((one, other) => Buffer.compare(one.name, other.name))) {
    const path = Buffer.concat([directory, Buffer.from("/"), entry.name]);
    const name = prefix.length > 0 ? Buffer.concat([prefix, Buffer.from("/"), entry.name]) : entry.name;
    if (entry.isDirectory()) {
      const { mode, mtimeMs } = await lstat(path);
      yield header(name, DIRECTORY as string, 0, mode, mtimeMs);
      yield* packBelow(path, name, packed);
    } else if (entry.isFile()) {
      yield* packFile(path, name, packed);
    }
  }
}

async function* packFile(path: Buffer, name: Buffer, packed: Packed): AsyncGenerator<Uint8Array, void> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const { mode, mtimeMs, size } = await file.stat();
    yield header(name, FILE as string, size, mode, mtimeMs);
    let left = size;
    while (left > 0) {
      const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(Math.min(left, PIECE_BYTES)));
      if (bytesRead === 0) throw new AgentboxError(`${path}: became shorter while it was read`);
      left -= bytesRead;
      packed.bytes += bytesRead;
      yield buffer.subarray(0, bytesRead);
    }
    yield Buffer.alloc(padding(size));
  } finally {
    await file.close();
  }
}

const padding = (size: number) => (BLOCK - (size % BLOCK)) % BLOCK;

function header(name: Buffer, kind: string, size: number, mode: number, mtimeMs: number): Buffer {
  if (name.length < 100) return block(name, kind, size, mode, mtimeMs);
  const ended = Buffer.concat([name, Buffer.alloc(1)]);
  return Buffer.concat([
    block(Buffer.from("././@LongLink"), LONG_NAME as string, ended.length, 0o644, 0),
    ended,
    Buffer.alloc(padding(ended.length)),
    block(name.subarray(0, 99), kind, size, mode, mtimeMs),
  ]);
}

function block(name: Buffer, kind: string, size: number, mode: number, mtimeMs: number): Buffer {
  const made = Buffer.alloc(BLOCK);
  name.copy(made, 0);
  made.write((mode & 0o777).toString(8).padStart(7, "0"), 100);
  made.write("0000000\0" + "0000000", 108);
  writeNumber(made, 124, size);
  writeNumber(made, 136, Math.max(0, Math.floor(mtimeMs / 1000)));
  made.fill(" ", 148, 156);
  made.write(kind, 156);
  made.write("ustar  ", 257);
  const sum = made.reduce((total, byte) => total + byte, 0);
  made.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148);
  return made;
}

/** Twelve bytes: octal digits, and as bytes what these cannot hold. */
function writeNumber(made: Buffer, at: number, value: number): void {
  if (value < 8 ** 11) {
    made.write(value.toString(8).padStart(11, "0"), at);
    return;
  }
  made.writeUInt8(0x80, at);
  made.writeBigUInt64BE(BigInt(value), at + 4);
}

/** Unpack a stream of tar to the directory `target`, which must not exist. Throws AgentboxError, errors of files. */
export async function unpack(pieces: AsyncIterable<Uint8Array>, target: string): Promise<Unpacked> {
  await mkdir(target, 0o755);
  const source = new Source(pieces);
  const found: Unpacked = { files: 0, bytes: 0, leftOut: [] };
  try {
    for await (const member of members(source)) await take(source, member, Buffer.from(target), found);
    await source.drain();
  } finally {
    await source.close();
  }
  return found;
}

interface Member {
  name: Buffer;
  kind: string;
  size: number;
  mode: number;
}

async function take(source: Source, member: Member, target: Buffer, found: Unpacked): Promise<void> {
  const parts = split(member.name);
  const path = Buffer.concat([target, ...parts.flatMap((part) => [Buffer.from("/"), part])]);
  const shown = member.name.toString();
  if (member.kind === DIRECTORY) {
    await mkdir(path, { recursive: true, mode: 0o755 });
  } else if (member.kind === FILE || member.kind === "\0") {
    await mkdir(path.subarray(0, path.lastIndexOf("/")), { recursive: true, mode: 0o755 });
    await store(source, member, path);
    found.files += 1;
    found.bytes += member.size;
    return;
  } else if (found.leftOut.length < MOST_LEFT_OUT) {
    found.leftOut.push(`${shown}: no file and no directory`);
  }
  await source.skip(member.size + padding(member.size));
}

async function store(source: Source, member: Member, path: Buffer): Promise<void> {
  const file = await open(path, OPEN_NEW, 0o600);
  try {
    let left = member.size;
    while (left > 0) {
      const piece = await source.some(Math.min(left, PIECE_BYTES));
      await file.writeFile(piece);
      left -= piece.length;
    }
  } finally {
    await file.close();
  }
  await chmod(path, (member.mode & 0o777) | 0o600);
  await source.skip(padding(member.size));
}

/** The parts of a member's name. Throws AgentboxError for one that leads out of the directory. */
function split(name: Buffer): Buffer[] {
  const parts: Buffer[] = [];
  let begin = 0;
  for (let at = 0; at <= name.length; at++) {
    if (at < name.length && name[at] !== 0x2f) continue;
    const part = name.subarray(begin, at);
    begin = at + 1;
    const text = part.toString("latin1");
    if (text === "" || text === ".") continue;
    if (text === ".." || text.includes("\0")) {
      throw new AgentboxError(`${JSON.stringify(name.toString())}: the box names a file outside of its directory`);
    }
    parts.push(part);
  }
  return parts;
}

/** The members of an archive; the content of each is still to be read when it is given out. */
async function* members(source: Source): AsyncGenerator<Member, void> {
  let name: Buffer | undefined;
  let size: number | undefined;
  for (let entries = 0; ; ) {
    const head = await source.exactly(BLOCK);
    if (head.every((byte) => byte === 0)) return;
    const member = parsed(head);
    if (member.kind === LONG_NAME || member.kind === PAX || member.kind === PAX_GLOBAL) {
      if (member.size > MAX_HEADER_BYTES) throw broken("a name is too long");
      const content = await source.exactly(member.size);
      await source.skip(padding(member.size));
      if (member.kind === LONG_NAME) name = untilZero(content);
      if (member.kind === PAX) {
        const records = paxRecords(content);
        name = records.get("path") ?? name;
        size = records.has("size") ? Number(records.get("size")) : size;
      }
      continue;
    }
    if (++entries > MAX_ENTRIES) throw new AgentboxError(`the directory holds more than ${MAX_ENTRIES} entries`);
    yield { ...member, name: name ?? member.name, size: size ?? member.size };
    name = undefined;
    size = undefined;
  }
}

function parsed(head: Buffer): Member {
  const sum = head.reduce((total, byte, at) => total + (at >= 148 && at < 156 ? 0x20 : byte), 0);
  if (number(head, 148, 8) !== sum) throw broken("a header's sum is wrong");
  const kind = String.fromCharCode(head[156] as number);
  const short = untilZero(head.subarray(0, 100));
  const prefix = head.toString("latin1", 257, 263) === "ustar\0" ? untilZero(head.subarray(345, 500)) : Buffer.alloc(0);
  const name = prefix.length > 0 ? Buffer.concat([prefix, Buffer.from("/"), short]) : short;
  // What is no file has no content, whatever its size says.
  const size = /[0L\0xg]/.test(kind) ? number(head, 124, 12) : 0;
  return { name, kind, size, mode: number(head, 100, 8) };
}

function number(head: Buffer, at: number, length: number): number {
  if ((head[at] as number) & 0x80) return Number(head.readBigUInt64BE(at + length - 8));
  const text = head.toString("latin1", at, at + length).replace(/[\0 ]+$/, "").trim();
  if (!/^[0-7]*$/.test(text)) throw broken("a number is none");
  return Number.parseInt(text || "0", 8);
}

function untilZero(bytes: Buffer): Buffer {
  const end = bytes.indexOf(0);
  return end < 0 ? bytes : bytes.subarray(0, end);
}

/** `LENGTH NAME=VALUE` and a line feed, again and again. */
function paxRecords(content: Buffer): Map<string, Buffer> {
  const found = new Map<string, Buffer>();
  for (let at = 0; at < content.length; ) {
    const blank = content.indexOf(" ", at);
    const length = blank < 0 ? Number.NaN : Number(content.toString("latin1", at, blank));
    const equals = content.indexOf("=", at);
    const end = at + length;
    if (!Number.isInteger(length) || length <= 0 || end > content.length || equals < 0 || equals >= end) {
      throw broken("a record of names is none");
    }
    found.set(content.toString("utf8", blank + 1, equals), content.subarray(equals + 1, end - 1));
    at = end;
  }
  return found;
}

function broken(what: string): AgentboxError {
  return new AgentboxError(`the archive of the box cannot be read: ${what}`);
}

/** A stream that is read in pieces of the reader's sizes. */
class Source {
  readonly #pieces: AsyncIterator<Uint8Array>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(pieces: AsyncIterable<Uint8Array>) {
    this.#pieces = pieces[Symbol.asyncIterator]();
  }

  /** At least one byte, at most `most`. */
  async some(most: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const { value, done } = await this.#pieces.next();
      if (done) throw broken("it ends in the middle");
      this.#rest = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    }
    const given = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(given.length);
    return given;
  }

  async exactly(size: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    for (let left = size; left > 0; ) {
      const part = await this.some(left);
      parts.push(part);
      left -= part.length;
    }
    return parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts);
  }

  async skip(size: number): Promise<void> {
    for (let left = size; left > 0; ) left -= (await this.some(left)).length;
  }

  /** Read what follows the end of the archive: it belongs to the answer. */
  async drain(): Promise<void> {
    while (!(await this.#pieces.next()).done);
  }

  async close(): Promise<void> {
    await this.#pieces.return?.();
  }
}
