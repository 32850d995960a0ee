// SPDX-License-Identifier: MIT
// What of the runtime ends later and calls the program then, in its turn: see turns.cjs.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const timers = require('node:timers');
const timersPromises = require('node:timers/promises');
const { promisify: { custom } } = require('node:util');

const { dressed } = require('./dressing.cjs');

const CRYPTO = ['checkPrime', 'generateKey', 'generateKeyPair', 'generatePrime', 'hkdf', 'pbkdf2', 'randomBytes', 'randomFill',
  'randomInt', 'scrypt', 'sign', 'verify', 'argon2', 'diffieHellman'];
const { binding } = process;
const HANDLE = ['appendFile', 'chmod', 'chown', 'close', 'datasync', 'read', 'readFile', 'readv', 'stat', 'sync', 'truncate', 'utimes',
  'write', 'writeFile', 'writev'];

// Replace a function that calls its last argument back.
function callback(turns, holder, name) {
  const real = holder[name];
  if (typeof real !== 'function' || !Object.getOwnPropertyDescriptor(holder, name)?.writable) return;
  holder[name] = dressed(function (...given) {
    const call = given[given.length - 1];
    if (typeof call !== 'function') return Reflect.apply(real, this, given);
    const number = turns.begin();
    given[given.length - 1] = function (...found) { turns.end(number, () => Reflect.apply(call, this, found)); };
    try {
      return Reflect.apply(real, this, given);
    } catch (error) {
      turns.forget(number);
      throw error;
    }
  }, real);
  if (real.native) holder[name].native = real.native;
}

// Replace a function that gives a promise.
function promise(turns, holder, name) {
  const real = holder[name];
  if (typeof real !== 'function' || !Object.getOwnPropertyDescriptor(holder, name)?.writable) return;
  holder[name] = dressed(async function (...given) {
    const number = turns.begin();
    let found;
    try {
      found = await Reflect.apply(real, this, given);
    } catch (error) {
      await turns.ended(number);
      throw error;
    }
    await turns.ended(number);
    return found;
  }, real);
}

// `isOwn` says that the runtime's own JavaScript calls: nothing of the program waits for what it begins.
function install(turns, isOwn) {
  for (const name of Object.keys(fs)) if (fs[`${name}Sync`]) callback(turns, fs, name);
  for (const name of Object.keys(fs.promises)) if (name !== 'watch') promise(turns, fs.promises, name);
  for (const name of CRYPTO) if (crypto[name]?.length !== undefined) callback(turns, crypto, name);
  const subtle = Object.getPrototypeOf(crypto.webcrypto.subtle);
  for (const name of Object.getOwnPropertyNames(subtle)) if (name !== 'constructor' && name !== 'supports') promise(turns, subtle, name);
  installTimers(turns, isOwn);
  for (const prototype of compressors()) installCompressor(turns, prototype);
}

// The prototypes of what compresses, below its streams. To load those takes longer than all else here.
function compressors() {
  let found;
  try {
    found = Object.values(binding.call(process, 'zlib')).map((one) => one.prototype);
  } catch {
    // Node's own permissions are in the way.
    const zlib = require('node:zlib');
    found = Object.keys(zlib).filter((name) => /^create(?:Gzip|Brotli|Zstd)/.test(name)).map((name) => {
      const stream = zlib[name]();
      const prototype = Object.getPrototypeOf(stream._handle);
      stream.destroy();
      return prototype;
    });
  }
  return found.filter((one) => typeof one?.init === 'function' && typeof one.write === 'function');
}

function installCompressor(turns, prototype) {
  const { init, write } = prototype;
  const numbers = new WeakMap();
  prototype.init = function (...given) {
    return Reflect.apply(init, this, given.map((one) => (typeof one !== 'function' ? one : function (...found) {
      turns.end(numbers.get(this), () => Reflect.apply(one, this, found));
    })));
  };
  prototype.write = function (...given) {
    numbers.set(this, turns.begin());
    return Reflect.apply(write, this, given);
  };
}

// The methods of file handles, once there is one.
function installHandles(turns, prototype) {
  for (const name of HANDLE) promise(turns, prototype, name);
}

function installTimers(turns, isOwn) {
  const numbers = new WeakMap();
  for (const [set, unset, isLast] of [['setTimeout', 'clearTimeout', true], ['setInterval', 'clearInterval', false],
    ['setImmediate', 'clearImmediate', true]]) {
    const { [set]: begin, [unset]: end } = timers;
    const made = likeTimer(function (call, ...given) {
      if (typeof call !== 'function' || isOwn()) return begin(call, ...given);
      const number = turns.begin();
      const timer = begin(function (...found) { turns.end(number, () => Reflect.apply(call, this, found), isLast); }, ...given);
      numbers.set(timer, number);
      return timer;
    }, begin);
    const unmade = dressed((timer) => {
      const number = timer !== null && typeof timer === 'object' ? numbers.get(timer) : undefined;
      if (number !== undefined) turns.drop(number);
      return end(timer);
    }, end);
    for (const holder of [timers, globalThis]) Object.assign(holder, { [set]: made, [unset]: unmade });
  }
  for (const name of ['setTimeout', 'setImmediate']) promise(turns, timersPromises, name);
}

// As `dressed`, but what `promisify` makes of it is that of timers/promises, which has its turns too.
function likeTimer(function_, real) {
  const { name } = real;
  Object.defineProperty(function_, 'name', { value: name });
  Object.defineProperty(function_, 'length', { value: real.length });
  if (Object.hasOwn(real, custom)) Object.defineProperty(function_, custom, { enumerable: true, get: () => timersPromises[name] });
  return function_;
}

module.exports = { install, installHandles };
