// SPDX-License-Identifier: MIT
// Files of a sandbox. The agent in the box reads and writes them as the box's user: a link leads where it leads inside.

import { constants } from "node:fs";
import { lstat, open, stat, unlink } from "node:fs/promises";

import { type Packed, pack, unpack, type Unpacked } from "./archive.js";
import { type Pieces, requestBytes } from "./command.js";
import type { Call, CallOptions, Connection } from "./connection.js";
import { fromBase64, textOf } from "./content.js";
import { SandboxFileError } from "./errors.js";
import type { FileInfo as Told, FileList } from "./generated.js";

/** A path in the box, absolute or relative to /work; bytes where it is no UTF-8. */
export type FilePath = string | Uint8Array;

/** Whose rights are used: those of the sandbox's user, unless it is said. */
export interface FileOptions extends CallOptions {
  user?: "agent" | "root";
}

/** What is at a path; of a link, the link itself. */
export interface FileInfo {
  /** Absolute; what is not UTF-8 in it is escaped. */
  path: string;
  /** The last part of the path. */
  name: string;
  /** The path's exact bytes, only where they are not UTF-8. */
  pathBytes?: Uint8Array;
  kind: Told["kind"];
  size: number;
  /** Permission bits. */
  mode: number;
  modified: Date;
  uid: number;
  gid: number;
  /** Where a link leads. */
  target: string | null;
}

const OPEN_NEW = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;

/** Files of one sandbox; see Sandbox.files. Nothing holds a whole file in memory unless `read` is asked for one. */
export class Files {
  readonly #connection: Connection;
  readonly #sandbox: () => { sandbox_id: string };

  constructor(connection: Connection, sandbox: () => { sandbox_id: string }) {
    this.#connection = connection;
    this.#sandbox = sandbox;
  }

  /** A file's bytes. Throws SandboxFileError with errno EFBIG when there are more than `maxBytes`. */
  async read(
    path: FilePath,
    options: FileOptions & { offset?: number; length?: number; maxBytes?: number } = {},
  ): Promise<Uint8Array> {
    const { maxBytes = Number.POSITIVE_INFINITY, ...rest } = options;
    const pieces: Uint8Array[] = [];
    let size = 0;
    for await (const piece of this.stream(path, rest)) {
      size += piece.length;
      if (size > maxBytes) throw tooLarge(path, maxBytes);
      pieces.push(piece);
    }
    const whole = new Uint8Array(size);
    let at = 0;
    for (const piece of pieces) {
      whole.set(piece, at);
      at += piece.length;
    }
    return whole;
  }

  /** A file's text; what is not UTF-8 in it is replaced. */
  async readText(path: FilePath, options: FileOptions = {}): Promise<string> {
    return textOf(await this.read(path, options));
  }

  /** A file's bytes, piece by piece. */
  async *stream(
    path: FilePath,
    options: FileOptions & { offset?: number; length?: number } = {},
  ): AsyncGenerator<Uint8Array, void> {
    const { offset, length, ...rest } = options;
    const call = this.#call(path, rest, { offset, length });
    yield* this.#connection.pieces("read_file", await this.#about(path, this.#connection.send("read_file", call)), rest);
  }

  /**
   * Write a file, with its parents. `how`: `replace` puts it in the place of what is there, whole or not at all;
   * `append` adds at the end; `new` is an error (EEXIST) where something is.
   */
  async write(
    path: FilePath,
    data: Pieces,
    options: FileOptions & { mode?: number; how?: "replace" | "append" | "new" } = {},
  ): Promise<void> {
    const { mode, how, ...rest } = options;
    const call = this.#call(path, rest, { how, mode: mode === undefined ? undefined : octal(mode) });
    const repeat = how === undefined || how === "replace";
    await this.#about(path, this.#connection.done("write_file", { ...call, bytes: requestBytes(data), repeat }));
  }

  /** What is in a directory, by path; `depth` -1 is all below it. */
  async list(path: FilePath = ".", options: FileOptions & { depth?: number } = {}): Promise<FileInfo[]> {
    const { depth, ...rest } = options;
    const call = this.#call(path, rest, { depth });
    const { entries } = await this.#about(path, this.#connection.json<FileList>("list_files", call));
    return entries.map(info).sort((one, other) => (one.path < other.path ? -1 : 1));
  }

  /** What is at a path; of a link, the link itself. */
  async info(path: FilePath, options: FileOptions = {}): Promise<FileInfo> {
    return info(await this.#about(path, this.#connection.json<Told>("file_info", this.#call(path, options))));
  }

  /** Whether something is there; a link counts itself. */
  async exists(path: FilePath, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.info(path, options);
      return true;
    } catch (error) {
      if (error instanceof SandboxFileError && (error.errno === "ENOENT" || error.errno === "ENOTDIR")) return false;
      throw error;
    }
  }

  /** Make a directory with its parents; one that exists is no error. */
  async makeDirectory(path: string, options: FileOptions & { mode?: number } = {}): Promise<void> {
    const { mode, ...rest } = options;
    const json = { path: absolute(path), ...(mode === undefined ? {} : { mode: octal(mode) }) };
    await this.#about(path, this.#connection.done("make_directory", { ...this.#bare(rest), json }));
  }

  /** Remove a file, or a directory with all that is in it. */
  async remove(path: FilePath, options: FileOptions = {}): Promise<void> {
    await this.#about(path, this.#connection.done("remove_file", this.#call(path, options)));
  }

  /** Give it another name, over what has that name. */
  async rename(path: string, to: string, options: FileOptions = {}): Promise<void> {
    const json = { path: absolute(path), to: absolute(to) };
    await this.#about(path, this.#connection.done("move_file", { ...this.#bare(options), json }));
  }

  /**
   * Copy a file or a directory of this machine into the box, with permission bits; links in a directory are left out.
   * How many bytes of files that were.
   */
  async upload(source: string, path: FilePath, options: FileOptions = {}): Promise<number> {
    const status = await stat(source);
    if (status.isDirectory()) {
      const packed: Packed = { bytes: 0 };
      await this.unpack(path, pack(source, packed), options);
      return packed.bytes;
    }
    const file = await open(source);
    try {
      let sent = 0;
      const counted = async function* () {
        for await (const piece of file.createReadStream({ autoClose: false, highWaterMark: 1 << 18 })) {
          sent += piece.length;
          yield piece as Uint8Array;
        }
      };
      await this.write(path, counted(), { ...options, mode: status.mode & 0o777 });
      return sent;
    } finally {
      await file.close();
    }
  }

  /**
   * Copy a file or a directory of the box to a path of this machine, where nothing may be (EEXIST). Of a directory only
   * files and directories come, and no link is made. How many bytes of files that were.
   */
  async download(path: FilePath, target: string, options: FileOptions = {}): Promise<number> {
    const found = await this.info(path, options);
    if (found.kind === "directory") return (await this.downloadDirectory(path, target, options)).bytes;
    await missing(target);
    const pieces = this.stream(path, options);
    const file = await open(target, OPEN_NEW, 0o644);
    try {
      let copied = 0;
      for await (const piece of pieces) {
        await file.writeFile(piece);
        copied += piece.length;
      }
      return copied;
    } catch (error) {
      await unlink(target);
      throw error;
    } finally {
      await file.close();
    }
  }

  /** As `download` of a directory; says also what was left out. */
  async downloadDirectory(path: FilePath, target: string, options: FileOptions = {}): Promise<Unpacked> {
    await missing(target);
    return unpack(this.archive(path, options), target);
  }

  /** A directory as a stream of tar. */
  async *archive(path: FilePath, options: FileOptions = {}): AsyncGenerator<Uint8Array, void> {
    const answer = await this.#about(path, this.#connection.send("download_directory", this.#call(path, options)));
    yield* this.#connection.pieces("download_directory", answer, options);
  }

  /** Unpack a stream of tar into a directory, in the box and as the box's user. */
  async unpack(path: FilePath, archive: Pieces, options: FileOptions = {}): Promise<void> {
    const call = { ...this.#call(path, options), bytes: requestBytes(archive), contentType: "application/x-tar" };
    await this.#about(path, this.#connection.done("upload_directory", { ...call, repeat: false }));
  }

  #bare({ user, ...call }: FileOptions): Call {
    return { ...call, path: this.#sandbox(), query: { user } };
  }

  #call(path: FilePath, options: FileOptions, query: Call["query"] = {}): Call {
    const bare = this.#bare(options);
    const whole = typeof path === "string" ? absolute(path) : path;
    return { ...bare, query: { ...bare.query, path: whole, ...query } };
  }

  /** Let an error of files say which path was asked for. */
  async #about<T>(path: FilePath, work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (error) {
      if (error instanceof SandboxFileError) error.body.path ??= typeof path === "string" ? absolute(path) : textOf(path);
      throw error;
    }
  }
}

/** A path as the box has it. Throws TypeError for one with a zero byte. */
export function absolute(path: string): string {
  if (path.includes("\0")) throw new TypeError("a path cannot hold a zero byte");
  const parts: string[] = [];
  for (const part of (path.startsWith("/") ? path : `/work/${path}`).split("/")) {
    if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}`;
}

function info(told: Told): FileInfo {
  const { path_b64: bytes, modified, ...rest } = told;
  const name = told.path.slice(told.path.lastIndexOf("/") + 1);
  const more = bytes === null ? {} : { pathBytes: fromBase64(bytes) };
  return { ...rest, name, modified: new Date(modified * 1000), ...more };
}

function octal(mode: number): string {
  return (mode & 0o777).toString(8).padStart(4, "0");
}

function tooLarge(path: FilePath, most: number): SandboxFileError {
  const shown = typeof path === "string" ? absolute(path) : textOf(path);
  const detail = `${shown}: File too large: more than ${most} bytes`;
  return new SandboxFileError("read_file", 413, { detail, code: "file_error", errno: "EFBIG", path: shown });
}

/** Throws what opening a new file there would. */
async function missing(target: string): Promise<void> {
  const found = await lstat(target).catch(() => undefined);
  if (found !== undefined) {
    throw Object.assign(new Error(`EEXIST: file already exists, '${target}'`), { code: "EEXIST", path: target });
  }
}
