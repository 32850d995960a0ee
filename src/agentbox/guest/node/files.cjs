// SPDX-License-Identifier: MIT
// The doors of `fs`: synchronous, callback and promise functions, streams, handles.
'use strict';

const fs = require('node:fs');

const { O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND } = fs.constants;
const WRITING = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;

// What each function does to its path arguments; `Sync` and promise forms do the same.
const KINDS = {
  readFile: 'read', openAsBlob: 'read', watch: 'look', watchFile: 'look',
  readdir: 'list', opendir: 'list',
  writeFile: 'write', appendFile: 'write', truncate: 'write',
  mkdir: 'mkdir', mkdtemp: 'fs.mkdir', rm: 'fs.remove', rmdir: 'fs.remove', unlink: 'fs.remove',
  chmod: 'fs.chmod', lchmod: 'fs.chmod', chown: 'fs.chown', lchown: 'fs.chown', utimes: 'fs.utime', lutimes: 'fs.utime',
  open: 'open', rename: 'rename', link: 'link', symlink: 'symlink', copyFile: 'copy', cp: 'copy',
};
// These call back into the program while they run.
const CALLING = new Set(['cp', 'rm']);
// Objects with a getter could say one thing to the guard and another to the call.
const plain = (value) => (value !== null && typeof value === 'object' && Object.getPrototypeOf(value) === Object.prototype
  ? { ...value } : value);

function writes(flags) {
  if (typeof flags === 'number') return (flags & WRITING) !== 0;
  return typeof flags === 'string' && /[wa+]/.test(flags);
}

function install(effects) {
  // True while a function of `fs` runs synchronously: what it calls in turn was asked about already.
  let inside = false;

  function ask(kind, args) {
    switch (kind) {
      case 'read': return effects.read(args[0]);
      case 'look': return effects.read(args[0], false);
      case 'list': return effects.strict ? effects.read(args[0], false) : undefined;
      case 'write': return written(args[0], args[1]);
      case 'mkdir': {
        const text = effects.text(args[0]);
        if (text !== null && effects.resolve(text.replace(/(?<=.)\/+$/, '')).found) return undefined;
        return void effects.change('fs.mkdir', args[0]);
      }
      case 'open': {
        if (writes(args[1])) return written(args[0]);
        return effects.read(args[0]);
      }
      case 'rename':
      case 'link': {
        const whole = kind === 'rename';
        const from = effects.mayWrite(args[0], { whole });
        const to = effects.mayWrite(args[1], { whole });
        if (from && to) effects.happens(`fs.${kind}`, { path: from.full, to: to.full });
        return undefined;
      }
      case 'symlink': {
        const to = effects.mayWrite(args[1]);
        const target = effects.text(args[0]);
        if (to && target !== null && effects.strict) {
          effects.read(target[0] === '/' ? target : `${to.full.slice(0, to.full.lastIndexOf('/'))}/${target}`, false);
        }
        if (to) effects.happens('fs.symlink', { path: to.full, target });
        return undefined;
      }
      case 'copy':
        effects.read(args[0]);
        return written(args[1]);
      default: return void effects.change(kind, args[0]);
    }
  }

  function written(given) {
    const target = effects.mayWrite(given, { follow: true });
    if (target) effects.happens('fs.open_write', { path: target.full });
  }

  function guarded(name, kind, real) {
    const function_ = function (...given) {
      if (inside) return Reflect.apply(real, this, given);
      const args = given.map(plain);
      if (args[0] instanceof Uint8Array) args[0] = Buffer.from(args[0]);
      ask(kind, args);
      if (CALLING.has(name)) return Reflect.apply(real, this, args);
      inside = true;
      try {
        return Reflect.apply(real, this, args);
      } finally {
        inside = false;
      }
    };
    return dressed(function_, real);
  }

  // A promise function rejects, and a callback function calls back, where the program expects the error.
  function guardedPromise(name, kind, real) {
    return dressed(async function (...given) {
      const args = given.map(plain);
      ask(kind, args);
      return Reflect.apply(real, this, args);
    }, real);
  }

  function guardedCallback(name, kind, real) {
    const direct = guarded(name, kind, real);
    return dressed(function (...args) {
      const callback = args[args.length - 1];
      if (typeof callback !== 'function' || inside) return Reflect.apply(direct, this, args);
      try {
        return Reflect.apply(direct, this, args);
      } catch (error) {
        if (error?.name !== 'AgentboxPolicyError') throw error;
        process.nextTick(callback, error);
        return undefined;
      }
    }, real);
  }

  for (const [name, kind] of Object.entries(KINDS)) {
    if (fs[`${name}Sync`]) fs[`${name}Sync`] = guarded(name, kind, fs[`${name}Sync`]);
    if (fs.promises[name]) fs.promises[name] = guardedPromise(name, kind, fs.promises[name]);
    if (!fs[name]) continue;
    if (name === 'openAsBlob') fs[name] = guardedPromise(name, kind, fs[name]);
    else fs[name] = guardedCallback(name, kind, fs[name]);
  }
}

function dressed(function_, real) {
  Object.defineProperty(function_, 'name', { value: real.name });
  Object.defineProperty(function_, 'length', { value: real.length });
  for (const key of Reflect.ownKeys(real)) {
    if (!['name', 'length', 'prototype', 'arguments', 'caller'].includes(key)) {
      Object.defineProperty(function_, key, Object.getOwnPropertyDescriptor(real, key));
    }
  }
  return function_;
}

module.exports = { dressed, install };
