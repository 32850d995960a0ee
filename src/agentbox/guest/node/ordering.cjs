// SPDX-License-Identifier: MIT
// What of the runtime ends later and calls the program then, in its turn: see turns.cjs.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const timers = require('node:timers');
const timersPromises = require('node:timers/promises');
const { promisify: { custom } } = require('node:util');
const zlib = require('node:zlib');

const { dressed } = require('./dressing.cjs');

const CRYPTO = ['checkPrime', 'generateKey', 'generateKeyPair', 'generatePrime', 'hkdf', 'pbkdf2', 'randomBytes', 'randomFill',
  'randomInt', 'scrypt', 'sign', 'verify', 'argon2', 'diffieHellman'];
const ZLIB = /^(?:(?:de|in)flate(?:Raw)?|g(?:un)?zip|unzip|brotli(?:Dec|C)ompress|zstd(?:Dec|C)ompress)$/;
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
      turns.forget();
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

function install(turns) {
  for (const name of Object.keys(fs)) if (fs[`${name}Sync`]) callback(turns, fs, name);
  for (const name of Object.keys(fs.promises)) if (name !== 'watch') promise(turns, fs.promises, name);
  for (const name of CRYPTO) if (crypto[name]?.length !== undefined) callback(turns, crypto, name);
  for (const name of Object.keys(zlib)) if (ZLIB.test(name)) callback(turns, zlib, name);
  const subtle = Object.getPrototypeOf(crypto.webcrypto.subtle);
  for (const name of Object.getOwnPropertyNames(subtle)) if (name !== 'constructor' && name !== 'supports') promise(turns, subtle, name);
  installTimers(turns);
}

// The methods of file handles, once there is one.
function installHandles(turns, prototype) {
  for (const name of HANDLE) promise(turns, prototype, name);
}

function installTimers(turns) {
  const numbers = new WeakMap();
  for (const [set, unset, isLast] of [['setTimeout', 'clearTimeout', true], ['setInterval', 'clearInterval', false],
    ['setImmediate', 'clearImmediate', true]]) {
    const { [set]: begin, [unset]: end } = timers;
    const made = likeTimer(function (call, ...given) {
      if (typeof call !== 'function') return begin(call, ...given);
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
