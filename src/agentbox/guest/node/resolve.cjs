// SPDX-License-Identifier: MIT
// What a program gave as path, in one form that cannot change afterwards; and the file that it means. In text of ours a
// byte that is no UTF-8 is half a surrogate pair, as in Python's file names.
'use strict';

const fs = require('node:fs');
const { fileURLToPath } = require('node:url');
const { isProxy, isUint8Array } = require('node:util').types;

// Taken before they are replaced: what the guard itself looks at asks nobody.
const { lstatSync, readlinkSync } = fs;
const cwd = process.cwd.bind(process);
const MAX_LINKS = 40;
const HALF = /[\ud800-\udfff]/u;

class TooManyLinks extends Error {}

// A string, a copy of bytes, or what the call itself takes or refuses; `isHandle` knows what no path is.
function plainPath(given, isHandle = () => false) {
  if (given === null || typeof given !== 'object') return given;
  if (isProxy(given)) return {};
  if (isUint8Array(given)) return Buffer.from(given);
  if (isHandle(given)) return given;
  // Whatever looks like a URL is one for fs; it is read one time.
  return given.href && given.protocol ? fileURLToPath(given) : {};
}

// The text of a plain path; null for what is none, and for what the call itself will refuse.
function textOf(plain) {
  if (typeof plain === 'string') {
    if (plain.includes('\0')) return null;
    return HALF.test(plain) ? Buffer.from(plain).toString() : plain;
  }
  if (!isUint8Array(plain) || plain.includes(0)) return null;
  return textOfBytes(plain);
}

function textOfBytes(bytes) {
  const text = bytes.toString('utf8');
  if (!text.includes('\ufffd') || Buffer.from(text).equals(bytes)) return text;
  return bytes.toString('latin1').split('/').map((part) => {
    const own = Buffer.from(part, 'latin1');
    const read = own.toString('utf8');
    if (Buffer.from(read).equals(own)) return read;
    return part.replace(/[\x80-\xff]/g, (byte) => String.fromCharCode(0xdc00 + byte.charCodeAt(0)));
  }).join('/');
}

// The path for the system, of a text of ours.
function native(text) {
  if (!HALF.test(text)) return text;
  return Buffer.concat(Array.from(text, (character) => {
    const code = character.codePointAt(0);
    return code >= 0xdc80 && code <= 0xdcff ? Buffer.of(code & 0xff) : Buffer.from(character);
  }));
}

// How a record names it.
const named = (text) => (HALF.test(text) ? { b64: native(text).toString('base64') } : text);

function lookAt(path) {
  try {
    return lstatSync(native(path), { throwIfNoEntry: false, bigint: true }) ?? null;
  } catch {
    // What cannot be looked at cannot be opened either; the call says why.
    return null;
  }
}

// The file that a path means, links followed as the kernel does, and its lstat; `follow` false keeps a link at the end.
function resolve(given, follow = true) {
  const absolute = given[0] === '/' ? given : `${cwd()}/${given}`;
  const waiting = absolute.split('/').reverse();
  let done = [];
  let links = 0;
  let found = null;
  while (waiting.length) {
    const part = waiting.pop();
    if (part === '' || part === '.') continue;
    if (part === '..') {
      done.pop();
      found = null;
      continue;
    }
    const here = `/${[...done, part].join('/')}`;
    found = lookAt(here);
    if (!found?.isSymbolicLink() || !(follow || waiting.length)) {
      done.push(part);
      continue;
    }
    if (++links > MAX_LINKS) throw new TooManyLinks(given);
    const target = textOfBytes(readlinkSync(native(here), { encoding: 'buffer' }));
    if (target[0] === '/') done = [];
    else if (here.startsWith('/proc/') && target.includes(':')) {
      done.push(part);
      continue;
    }
    waiting.push(...target.split('/').reverse());
  }
  const full = `/${done.join('/')}`;
  return { full, found: found ?? lookAt(full) };
}

const identityOf = ({ dev, ino }) => `${dev}:${ino}`;

module.exports = { HALF, TooManyLinks, identityOf, lookAt, named, native, plainPath, resolve, textOf };
