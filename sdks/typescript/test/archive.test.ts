// SPDX-License-Identifier: MIT
// What a box sends as an archive is anybody's: nothing of it leaves the directory that it is unpacked to.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { pack, unpack } from "../src/archive.js";
import { AgentboxError } from "../src/index.js";

let here: string;
let source: string;

before(async () => {
  here = await mkdtemp(join(tmpdir(), "agentbox-archive-"));
  source = join(here, "source");
  await mkdir(join(source, "sub", "n".repeat(200)), { recursive: true });
  await writeFile(join(source, "sub", "n".repeat(200), "file ☃"), "deep");
  await writeFile(join(source, "empty"), "");
  await symlink("/etc/passwd", join(source, "link"));
});

after(() => rm(here, { recursive: true }));

async function* pieces(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

const tar = (...words: string[]) => execFileSync("tar", ["-C", source, "-cf", "-", ...words]);
const files = async (place: string) => (await readdir(place, { recursive: true })).sort();
const wanted = ["empty", "sub", `sub/${"n".repeat(200)}`, `sub/${"n".repeat(200)}/file ☃`];

for (const format of ["gnu", "pax", "posix"]) {
  test(`archives of other programs are read (${format}), in pieces of any size, without their links`, async () => {
    for (const size of [1 << 16, 511]) {
      const target = join(here, `${format}-${size}`);
      const found = await unpack(pieces(tar(`--format=${format}`, "."), size), target);
      assert.deepEqual(await files(target), wanted);
      assert.deepEqual([found.files, found.bytes, found.leftOut.length], [2, 4, 1]);
    }
  });
}

test("other programs read what is packed", async () => {
  const packed = { bytes: 0 };
  const made: Uint8Array[] = [];
  for await (const piece of pack(source, packed)) made.push(piece);
  const target = join(here, "by-tar");
  await mkdir(target);
  execFileSync("tar", ["-C", target, "-xf", "-"], { input: Buffer.concat(made) });
  assert.deepEqual(await files(target), wanted);
  assert.equal(await readFile(join(target, wanted[3] as string), "utf8"), "deep");
  assert.equal(packed.bytes, 4);
});

test("a name that leads out of the directory is refused", async () => {
  const archive = tar("-P", "--transform=s,^empty,../outside,", "empty");
  await assert.rejects(unpack(pieces(archive, 4096), join(here, "out")), /outside of its directory/);
  assert.ok(!(await readdir(here)).includes("outside"));
});

test("a file below another, twice the same name, or below a link is an error and writes nothing elsewhere", async () => {
  const twice = Buffer.concat([tar("empty").subarray(0, 512), tar("empty")]);
  await assert.rejects(unpack(pieces(twice, 4096), join(here, "twice")), { code: "EEXIST" });
  const below = Buffer.concat([tar("empty").subarray(0, 512), tar("--transform=s,^empty,empty/x,", "empty")]);
  await assert.rejects(unpack(pieces(below, 4096), join(here, "below")), { code: /EEXIST|ENOTDIR/ });
});

test("an archive that is cut, changed or none is an error", async () => {
  const archive = tar("sub");
  await assert.rejects(unpack(pieces(archive.subarray(0, 2000), 4096), join(here, "cut")), AgentboxError);
  const changed = Buffer.from(archive);
  changed.writeUInt8(0x41, 3);
  await assert.rejects(unpack(pieces(changed, 4096), join(here, "changed")), AgentboxError);
  await assert.rejects(unpack(pieces(Buffer.alloc(4096, "x"), 4096), join(here, "none")), AgentboxError);
  await assert.rejects(unpack(pieces(archive, 4096), here), { code: "EEXIST" });
});
