// SPDX-License-Identifier: MIT
// Caps on what lies below a grant (`write: ./out max=10MB`): every way of writing asks the host before a file grows. What
// it grants for a file is remembered, so that not every write is a question. Without a cap nothing of it is in the way.
'use strict';

const fs = require('node:fs');

const { installHandles } = require('./ordering.cjs');
const { covers } = require('./policy.cjs');
const { identityOf, named, plainPath, resolve, textOf } = require('./resolve.cjs');

// Taken before they are replaced.
const { closeSync, fstatSync, openSync, readSync, readlinkSync } = fs;
const MAX_GRANTED = 4096;
const whole = { bigint: true };

const lengthOf = (data, encoding) => (typeof data === 'string' ? Buffer.byteLength(data, encoding) : data?.byteLength ?? 0);

// Where a descriptor stands and how it was opened, which only the kernel tells.
function standing(descriptor) {
  const file = openSync(`/proc/self/fdinfo/${descriptor}`, 'r');
  try {
    const data = Buffer.alloc(256);
    const text = data.toString('latin1', 0, readSync(file, data, 0, data.length, null));
    return { at: Number(/^pos:\s*(\d+)/m.exec(text)[1]), flags: parseInt(/^flags:\s*(\d+)/m.exec(text)[1], 8) };
  } finally {
    closeSync(file);
  }
}

class Caps {
  constructor(effects) {
    this.effects = effects;
    this.active = effects.answers.caps.length > 0;
    // How large the host lets each file become, by identity; bytes on their way, by descriptor.
    this.granted = new Map();
    this.coming = new Map();
    this.handles = null;
    this.made = 0;
  }

  isCapped(path) {
    return this.active && this.effects.answers.caps.some((target) => covers(target, path));
  }

  isHandle(given) {
    return this.handles !== null && given instanceof this.handles;
  }

  // Throw when a file may not have a size.
  ask(path, size, identity) {
    if (size <= (this.granted.get(identity) ?? -1)) return;
    const granted = this.effects.counts('fs.write', { path: named(path), identity, size });
    if (this.granted.size >= MAX_GRANTED) this.granted.clear();
    if (granted > 0) this.granted.set(identity, granted);
  }

  // A file is copied to a place, or comes there with its bytes.
  copies(target, source) {
    if (!source?.isFile() || !this.isCapped(target.full)) return;
    const identity = target.found?.isFile() ? identityOf(target.found) : `new:${++this.made}`;
    this.ask(target.full, Number(source.size), identity);
  }

  moves(target, source) {
    if (source?.isFile() && this.isCapped(target.full)) this.ask(target.full, Number(source.size), identityOf(source));
  }

  // A path is cut or grown to a length.
  cuts(text, length) {
    if (!this.active || text === null) return;
    const { full, found } = resolve(text);
    if (found?.isFile() && this.isCapped(full)) this.ask(full, Math.max(Number(length) || 0, 0), identityOf(found));
  }

  // The capped file that a descriptor is, null when it is none.
  fileOf(descriptor) {
    if (!this.active || typeof descriptor !== 'number') return null;
    try {
      const path = textOf(readlinkSync(`/proc/self/fd/${descriptor}`, { encoding: 'buffer' }));
      return this.isCapped(path) ? { path, found: fstatSync(descriptor, whole) } : null;
    } catch {
      return null;
    }
  }

  // A file was opened: it may be another one of the same number, or an empty one by now.
  opened(descriptor) {
    const file = this.fileOf(descriptor);
    if (file) this.granted.delete(identityOf(file.found));
  }

  // Throw when `count` bytes at a place (default: where the descriptor stands) would pass a cap.
  grows(descriptor, count, position = null) {
    const file = this.fileOf(descriptor);
    if (file === null || !file.found.isFile()) return;
    const size = Number(file.found.size);
    let at = position;
    if (at === null) {
      const { at: here, flags } = standing(descriptor);
      at = (flags & fs.constants.O_APPEND ? size : here) + (this.coming.get(descriptor) ?? 0);
    }
    this.ask(file.path, Math.max(size, at + count), identityOf(file.found));
  }

  // Bytes that are written later count for what is asked meanwhile.
  comes(descriptor, count) {
    this.coming.set(descriptor, (this.coming.get(descriptor) ?? 0) + count);
    return () => {
      const left = this.coming.get(descriptor) - count;
      if (left > 0) this.coming.set(descriptor, left);
      else this.coming.delete(descriptor);
    };
  }

  // How a function of `fs` with a path is called: files below a cap are written through a descriptor.
  calls(name, real, self, args) {
    if (this.isWhole(name, args)) {
      const descriptor = fs.openSync(args[0], flagOf(name, args[2]), args[2]?.mode);
      try {
        return fs.writeFileSync(descriptor, args[1], args[2]);
      } finally {
        closeSync(descriptor);
      }
    }
    const result = Reflect.apply(real, self, args);
    if (this.active && name === 'openSync') this.opened(result);
    return result;
  }

  callsBack(name, real, self, args) {
    const callback = args[args.length - 1];
    if (this.isWhole(name, args)) {
      const options = typeof args[2] === 'function' ? undefined : args[2];
      const descriptor = fs.openSync(args[0], flagOf(name, options), options?.mode);
      return fs.writeFile(descriptor, args[1], options ?? {}, (...results) => fs.close(descriptor, () => callback(...results)));
    }
    if (!this.active || name !== 'open') return Reflect.apply(real, self, args);
    return Reflect.apply(real, self, [...args.slice(0, -1), (error, descriptor) => {
      if (!error) this.opened(descriptor);
      callback(error, descriptor);
    }]);
  }

  async callsPromise(name, real, self, args) {
    if (this.isWhole(name, args)) {
      const handle = await fs.promises.open(args[0], flagOf(name, args[2]), args[2]?.mode);
      try {
        return await handle.writeFile(args[1], args[2]);
      } finally {
        await handle.close();
      }
    }
    const result = await Reflect.apply(real, self, args);
    if (name === 'open') {
      if (this.handles === null) this.watch(Object.getPrototypeOf(result));
      if (this.active) this.opened(result.fd);
    }
    return result;
  }

  // Whether a call writes a whole file below a cap.
  isWhole(name, [given]) {
    if (!this.active || !/^(?:write|append)File/.test(name)) return false;
    const text = textOf(plainPath(given));
    return text !== null && this.isCapped(resolve(text).full);
  }

  // The functions that write to descriptors.
  install(askDescriptor, dressed) {
    Object.assign(this, { askDescriptor, dressed });
    if (!this.active) return;
    const sync = (name, before) => {
      const real = fs[name];
      fs[name] = dressed((descriptor, ...rest) => {
        before(descriptor, rest);
        return Reflect.apply(real, fs, [descriptor, ...rest]);
      }, real);
    };
    const later = (name, countOf) => {
      const real = fs[name];
      fs[name] = dressed((descriptor, ...rest) => {
        const callback = rest[rest.length - 1];
        const { count, position } = countOf(rest);
        if (typeof callback !== 'function') return Reflect.apply(real, fs, [descriptor, ...rest]);
        try {
          this.grows(descriptor, count, position);
        } catch (error) {
          process.nextTick(callback, error);
          return undefined;
        }
        const done = position === null ? this.comes(descriptor, count) : () => {};
        return Reflect.apply(real, fs, [descriptor, ...rest.slice(0, -1), (...results) => {
          done();
          callback(...results);
        }]);
      }, real);
    };
    sync('writeSync', (descriptor, rest) => this.asks(descriptor, sizeOfWrite(rest)));
    sync('writevSync', (descriptor, rest) => this.asks(descriptor, sizeOfVector(rest)));
    sync('ftruncateSync', (descriptor, [length]) => this.asks(descriptor, { count: 0, position: Number(length) || 0 }));
    later('write', sizeOfWrite);
    later('writev', sizeOfVector);
    later('ftruncate', ([length]) => ({ count: 0, position: Number(length) || 0 }));
    this.installWhole();
  }

  asks(descriptor, { count, position }) {
    this.grows(descriptor, count, position);
  }

  // writeFile and appendFile of a descriptor; those of a path come here too.
  installWhole() {
    for (const name of ['writeFile', 'appendFile', 'writeFileSync', 'appendFileSync']) {
      const guarded = fs[name];
      fs[name] = this.dressed((file, data, ...rest) => {
        const text = typeof data === 'string' || ArrayBuffer.isView(data) ? data : String(data);
        const callback = rest[rest.length - 1];
        try {
          if (typeof file === 'number') this.grows(file, lengthOf(text, rest[0]?.encoding ?? rest[0]));
        } catch (error) {
          if (typeof callback !== 'function') throw error;
          process.nextTick(callback, error);
          return undefined;
        }
        return Reflect.apply(guarded, fs, [file, text, ...rest]);
      }, guarded);
    }
  }

  // The class of file handles shows itself with the first of them.
  watch(prototype) {
    this.handles = prototype.constructor;
    this.watchDoors(prototype);
    // Above the guards: what they ask is asked at once, as ever.
    const { tape } = this.effects;
    if (tape) installHandles(tape.turns, prototype);
  }

  watchDoors(prototype) {
    const { askDescriptor, dressed } = this;
    const before = (name, ask) => {
      const real = prototype[name];
      if (!real) return;
      prototype[name] = dressed(async function (...args) {
        const { done, given = args } = ask(this.fd, args) ?? {};
        try {
          return await Reflect.apply(real, this, given);
        } finally {
          done?.();
        }
      }, real);
    };
    for (const [name, op] of [['chmod', 'fs.chmod'], ['chown', 'fs.chown'], ['utimes', 'fs.utime']]) {
      before(name, (descriptor) => askDescriptor(op, descriptor));
    }
    if (!this.active) return;
    const counted = (descriptor, { count, position }) => {
      this.grows(descriptor, count, position);
      return { done: position === null ? this.comes(descriptor, count) : undefined };
    };
    before('write', (descriptor, args) => counted(descriptor, sizeOfWrite(args)));
    before('writev', (descriptor, args) => counted(descriptor, sizeOfVector(args)));
    before('truncate', (descriptor, [length]) => this.grows(descriptor, 0, Number(length) || 0));
    for (const name of ['writeFile', 'appendFile']) {
      before(name, (descriptor, [data, options]) => {
        if (typeof data === 'string' || ArrayBuffer.isView(data)) {
          const count = lengthOf(data, options?.encoding ?? options);
          this.grows(descriptor, count);
          return { given: [data, options], done: this.comes(descriptor, count) };
        }
        return { given: [this.measured(descriptor, data, options), options] };
      });
    }
  }

  // The parts of a stream, each asked about before it is written.
  async* measured(descriptor, data, options) {
    for await (const part of data) {
      this.grows(descriptor, lengthOf(part, options?.encoding ?? options));
      yield part;
    }
  }
}

const flagOf = (name, options) => options?.flag ?? (name.startsWith('append') ? 'a' : 'w');

// (buffer, offset, length, position), (buffer, {...}) or (string, position, encoding).
function sizeOfWrite([data, second, third, fourth]) {
  if (typeof data === 'string') {
    return { count: Buffer.byteLength(data, typeof third === 'string' ? third : 'utf8'), position: placeOf(second) };
  }
  const { offset, length, position } = second !== null && typeof second === 'object' ? second
    : { offset: second, length: third, position: fourth };
  const start = typeof offset === 'number' ? offset : 0;
  return { count: typeof length === 'number' ? length : lengthOf(data) - start, position: placeOf(position) };
}

const sizeOfVector = ([buffers, position]) => (
  { count: Array.isArray(buffers) ? buffers.reduce((sum, one) => sum + lengthOf(one), 0) : 0, position: placeOf(position) });

const placeOf = (position) => (typeof position === 'number' || typeof position === 'bigint' ? Number(position) : null);

module.exports = { Caps };
