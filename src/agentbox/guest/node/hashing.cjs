// SPDX-License-Identifier: MIT
// The hash of a file that is read, whatever its size. That of a large file is remembered for as long as the file looks
// the same.
'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');

const { identityOf, native } = require('./resolve.cjs');

const { closeSync, constants, fstatSync, openSync, readSync } = fs;
const { now } = Date;
const PIECE_BYTES = 1 << 20;
const REMEMBERED_BYTES = 1 << 18;
const MAX_REMEMBERED = 4096;
// A file system may give two writes one time; what was changed so shortly ago is looked at again.
const SETTLED_MS = 2000;
const remembered = new Map();

// The SHA-256 of a file, in hexadecimal. `found` is its lstat, with big integers. Throws what opening and reading throw.
function hashOf(path, found) {
  const isLarge = found.size >= REMEMBERED_BYTES;
  const look = isLarge ? [identityOf(found), found.size, found.mtimeNs, found.ctimeNs].join(':') : '';
  const known = isLarge && remembered.get(look);
  if (known) return known;
  const hash = createHash('sha256');
  const descriptor = openSync(native(path), constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const left = fstatSync(descriptor).size;
    const piece = Buffer.alloc(Math.min(left, PIECE_BYTES));
    for (let at = 0, more = -1; more !== 0 && at < left; at += more) {
      more = readSync(descriptor, piece, 0, Math.min(piece.length, left - at), null);
      hash.update(piece.subarray(0, more));
    }
  } finally {
    closeSync(descriptor);
  }
  const digest = hash.digest('hex');
  if (isLarge && Number(found.ctimeMs) < now() - SETTLED_MS) {
    if (remembered.size >= MAX_REMEMBERED) remembered.clear();
    remembered.set(look, digest);
  }
  return digest;
}

module.exports = { hashOf };
