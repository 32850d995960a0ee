// SPDX-License-Identifier: MIT
// Randomness of a recorded run: from the run's seed and the lane, so that the same lane draws the same bytes when the run
// is replayed. What the runtime draws for itself (TLS, signatures, key pairs) is not in here.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');

const { dressed } = require('./dressing.cjs');

const { createHash, createHmac, createSecretKey, hash: hashOnce } = crypto;
const BLOCK_BYTES = 32;
const KEY_BYTES = 64;
const MOST_BLOCKS = 8;
const MAX_NAMES = 100;
const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789';

// The bytes of a lane: blocks of 32, each an HMAC of its number. A draw takes whole ones, at least one; a long draw
// stretches one.
class Stream {
  constructor(seed, lane) {
    Object.assign(this, { seed, lane });
    this.number = 0;
    const padded = Buffer.alloc(KEY_BYTES);
    seed.copy(padded);
    this.inner = padded.map((byte) => byte ^ 0x36);
    this.outer = padded.map((byte) => byte ^ 0x5c);
  }

  block() {
    const text = `${this.lane}\0${this.number++}`;
    if (!hashOnce) return createHmac('sha256', this.seed).update(text).digest();
    // The same, several times as fast.
    const inner = hashOnce('sha256', Buffer.concat([this.inner, Buffer.from(text)]));
    return Buffer.from(hashOnce('sha256', Buffer.concat([this.outer, Buffer.from(inner, 'hex')])), 'hex');
  }

  bytes(count) {
    if (count <= BLOCK_BYTES) return Buffer.from(this.block().subarray(0, count));
    if (count > BLOCK_BYTES * MOST_BLOCKS) return createHash('shake256', { outputLength: count }).update(this.block()).digest();
    const blocks = Array.from({ length: Math.ceil(count / BLOCK_BYTES) }, () => this.block());
    return Buffer.concat(blocks).subarray(0, count);
  }

  // An integer below `range`, which is at most 2^48; each as likely as the other.
  below(range) {
    const limit = 2 ** 48 - (2 ** 48 % range);
    let drawn = limit;
    while (drawn >= limit) drawn = this.bytes(6).readUIntLE(0, 6);
    return drawn % range;
  }
}

// Numbers below 1 of 53 bits, fast, from a seed of the stream: Chris Doty-Humphrey's small generator (sfc32).
function fractionsOf(stream) {
  let [a, b, c, counter] = [0, 0, 0, 0];
  const next = () => {
    const found = (a + b | 0) + counter | 0;
    counter = counter + 1 | 0;
    a = b ^ b >>> 9;
    b = c + (c << 3) | 0;
    c = (c << 21 | c >>> 11) + found | 0;
    return found >>> 0;
  };
  let ready = false;
  return () => {
    if (!ready) {
      ready = true;
      const data = stream.bytes(16);
      [a, b, c, counter] = [0, 4, 8, 12].map((at) => data.readInt32LE(at));
      for (let round = 0; round < 15; round++) next();
    }
    return (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000;
  };
}

function uuidOf(bytes) {
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = bytes.toString('hex');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

const bytesOf = (view) => (ArrayBuffer.isView(view) ? Buffer.from(view.buffer, view.byteOffset, view.byteLength) : Buffer.from(view));

// Replace what programs draw from; `seed` are the bytes of the run's. The real functions are called first: they know
// which arguments are wrong. `isOwn` says that the runtime's own JavaScript calls. Gives the lane's stream.
function install(seed, lane, isOwn) {
  const stream = new Stream(seed, lane);
  const fraction = fractionsOf(stream);

  function replace(holder, name, drawn) {
    const real = holder[name];
    if (typeof real !== 'function') return;
    holder[name] = dressed(function (...given) {
      if (isOwn()) return Reflect.apply(real, this, given);
      const callback = given[given.length - 1];
      if (typeof callback !== 'function') return drawn(Reflect.apply(real, this, given), given);
      let value;
      let error;
      const result = Reflect.apply(real, this, [...given.slice(0, -1), (failure, found) => {
        if (failure) return callback(failure, found);
        return error ? callback(error) : callback(null, typeof value === 'function' ? value(found) : value);
      }]);
      // Drawn now, not when the real one is ready: that order is the program's own.
      try {
        value = drawn(null, given);
      } catch (failure) {
        error = failure;
      }
      return result;
    }, real);
  }

  const { random } = Math;
  Math.random = dressed(() => (isOwn() ? random() : fraction()), random);

  const bytes = (found, [count]) => stream.bytes(found?.length ?? Number(count));
  for (const name of ['randomBytes', 'pseudoRandomBytes', 'prng', 'rng']) {
    if (Object.getOwnPropertyDescriptor(crypto, name)?.writable) replace(crypto, name, bytes);
  }
  const filled = (_, [view, offset = 0, size]) => {
    const scale = view.BYTES_PER_ELEMENT ?? 1;
    const all = bytesOf(view);
    const from = typeof offset === 'number' ? offset * scale : 0;
    const part = stream.bytes(typeof size === 'number' ? size * scale : all.length - from);
    return { all, from, part, view };
  };
  const put = ({ all, from, part, view }) => {
    part.copy(all, from);
    return view;
  };
  replace(crypto, 'randomFillSync', (found, given) => put(filled(found, given)));
  replace(crypto, 'randomFill', (found, given) => {
    const ready = filled(found, given);
    return () => put(ready);
  });
  replace(crypto, 'randomInt', (_, [first, second]) => {
    const [low, high] = typeof second === 'number' ? [first, second] : [0, first];
    return low + stream.below(high - low);
  });
  const uuid = () => uuidOf(stream.bytes(16));
  const { randomUUID } = crypto;
  crypto.randomUUID = dressed((options) => {
    if (options !== undefined || isOwn()) {
      const found = randomUUID(options);
      if (isOwn()) return found;
    }
    return uuid();
  }, randomUUID);
  const web = Object.getPrototypeOf(crypto.webcrypto);
  replace(web, 'randomUUID', uuid);
  replace(web, 'getRandomValues', (view) => {
    const all = bytesOf(view);
    stream.bytes(all.length).copy(all);
    return view;
  });
  const secret = (_, [, { length }]) => createSecretKey(stream.bytes(Math.floor(length / 8)));
  replace(crypto, 'generateKeySync', secret);
  replace(crypto, 'generateKey', secret);
  return stream;
}

// Names of temporary directories, which the runtime makes up below JavaScript: made up here, and made by functions that
// have their guards.
function installNames(stream) {
  const { mkdir, mkdirSync } = fs;
  const { mkdir: mkdirPromise } = fs.promises;
  const suffix = () => Array.from(stream.bytes(6), (byte) => LETTERS[byte % LETTERS.length]).join('');
  const at = (prefix) => (typeof prefix === 'string' ? `${prefix}${suffix()}`
    : Buffer.concat([Buffer.from(prefix), Buffer.from(suffix())]));
  const shown = (path, options) => {
    const encoding = typeof options === 'string' ? options : options?.encoding;
    if (encoding === 'buffer') return Buffer.from(path);
    return encoding && encoding !== 'utf8' && encoding !== 'utf-8' ? Buffer.from(path).toString(encoding) : String(path);
  };
  const isPath = (prefix) => typeof prefix === 'string' || Buffer.isBuffer(prefix);
  const mode = { mode: 0o700 };
  const failed = (error, path) => Object.assign(error, { syscall: 'mkdtemp', path: `${path}`.replace(/.{6}$/s, 'XXXXXX'),
    message: error.message.replace('mkdir', 'mkdtemp').replace(/.{6}'$/s, "XXXXXX'") });

  const made = (prefix) => {
    for (let left = MAX_NAMES; ; left--) {
      const path = at(prefix);
      try {
        mkdirSync(path, mode);
        return path;
      } catch (error) {
        if (error.code !== 'EEXIST' || !left) throw failed(error, path);
      }
    }
  };
  const { mkdtemp, mkdtempSync } = fs;
  const { mkdtemp: mkdtempPromise } = fs.promises;
  fs.mkdtempSync = dressed((prefix, options) => (
    isPath(prefix) ? shown(made(prefix), options) : mkdtempSync(prefix, options)), mkdtempSync);
  fs.promises.mkdtemp = dressed(async (prefix, options) => {
    if (!isPath(prefix)) return mkdtempPromise(prefix, options);
    for (let left = MAX_NAMES; ; left--) {
      const path = at(prefix);
      try {
        await mkdirPromise(path, mode);
        return shown(path, options);
      } catch (error) {
        if (error.code !== 'EEXIST' || !left) throw failed(error, path);
      }
    }
  }, mkdtempPromise);
  fs.mkdtemp = dressed((prefix, options, callback = options) => {
    if (!isPath(prefix) || typeof callback !== 'function') return mkdtemp(prefix, options, callback);
    const attempt = (left) => {
      const path = at(prefix);
      mkdir(path, mode, (error) => {
        if (error?.code === 'EEXIST' && left) attempt(left - 1);
        else if (error) callback(failed(error, path));
        else callback(null, shown(path, options));
      });
    };
    return attempt(MAX_NAMES);
  }, mkdtemp);
}

module.exports = { Stream, install, installNames };
