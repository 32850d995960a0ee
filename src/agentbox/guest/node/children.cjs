// SPDX-License-Identifier: MIT
// Child processes that are not waited for, in a run that is recorded or replayed: what came from one, in which order and
// after which of this process's own words to it; and a child that says it again without being there.
'use strict';

const { createHash } = require('node:crypto');
const fs = require('node:fs');
const { constants } = require('node:os');
const { Readable, Writable } = require('node:stream');
const { isatty } = require('node:tty');

const { Packing, unpacked } = require('./values.cjs');

const { writeSync } = fs;
const { setImmediate: soon } = globalThis;
const MAX_EVENTS = 20_000;
const pause = new Int32Array(new SharedArrayBuffer(4));

const signalNumber = (name) => constants.signals[name] ?? 0;
const signalName = (number) => Object.keys(constants.signals).find((name) => constants.signals[name] === number) ?? null;

// Which of a child's streams are this process's own standard output or error, by number: `stdio` as spawn takes it.
function inherited(stdio) {
  const all = Array.isArray(stdio) ? stdio : [stdio, stdio, stdio];
  return all.map((one, at) => {
    const fd = one === 'inherit' ? at : typeof one === 'number' ? one : one?.fd;
    return fd === 1 || fd === 2 ? fd : null;
  });
}

function write(fd, data) {
  for (let at = 0; at < data.length;) {
    try {
      at += writeSync(fd, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') return;
      Atomics.wait(pause, 0, 0, 1);
    }
  }
}

// What this process says to a child: a mark stands before whatever came from it later.
class Said {
  // `tell` gets the hash and the size of what went to its standard input, when that is at its end.
  constructor(tell) {
    this.tell = tell;
    this.hash = createHash('sha256');
    this.written = 0;
    this.ended = false;
    this.sent = 0;
    this.killed = 0;
    this.hear = () => {};
  }

  get mark() { return [this.written, this.ended ? 1 : 0, this.sent, this.killed]; }

  reaches(mark) { return this.mark.every((count, at) => count >= mark[at]); }

  listen(child) {
    const hear = (change) => {
      change();
      this.hear();
    };
    const watch = (holder, name, change) => {
      const real = holder[name];
      Object.defineProperty(holder, name, { configurable: true, writable: true, value(...given) {
        hear(() => change(given));
        return Reflect.apply(real, this, given);
      } });
    };
    if (child.stdin) {
      const add = ([data, encoding]) => {
        const isText = typeof data === 'string';
        if (!isText && !ArrayBuffer.isView(data)) return;
        const bytes = isText ? Buffer.from(data, typeof encoding === 'string' ? encoding : 'utf8') : data;
        this.hash.update(bytes);
        this.written += bytes.byteLength;
      };
      watch(child.stdin, 'write', add);
      watch(child.stdin, 'end', (given) => {
        if (this.ended) return;
        add(given);
        this.ended = true;
        if (this.written) this.tell(this.hash.digest('hex'), this.written);
      });
    }
    if (child.send) watch(child, 'send', () => { this.sent++; });
    watch(child, 'kill', () => { this.killed++; });
  }
}

// How the host is told what a program got: in a lane of that spawn, since a program may be spoken to while others are.
function tellInput(effects) {
  const lane = `${effects.channel.own}|${effects.spawns++}`;
  return (sha256, bytes) => effects.observed('proc.stdin', { sha256, bytes }, { lane });
}

// The options of a child whose output will be recorded: what it would write to this process's own output passes through
// a pipe, unless that is a terminal.
function recordable(options) {
  const through = inherited(options.stdio ?? 'pipe').map((fd) => (fd !== null && !isatty(fd) ? fd : null));
  if (through.every((fd) => fd === null)) return { options, through };
  const all = Array.isArray(options.stdio) ? [...options.stdio] : Array(3).fill(options.stdio);
  through.forEach((fd, at) => { if (fd !== null) all[at] = 'pipe'; });
  return { options: { ...options, stdio: all }, through };
}

// Keep what comes from a child that was started, and tell the host when all of it did.
function record(effects, child, spawn, through) {
  const events = [];
  const parts = { 1: new Packing(effects.channel), 2: new Packing(effects.channel) };
  const held = {};
  const { turns } = effects.tape;
  const number = turns.begin();
  const said = new Said(tellInput(effects));
  let last = said.mark;
  let error;
  let isWhole = child.stdio.length <= 3 || child.stdio.slice(3).every((one) => one === null || one === undefined);
  const note = (event, say) => {
    const { mark } = said;
    if (mark.some((count, at) => count !== last[at])) events.push(['after', ...mark]);
    last = mark;
    events.push(event);
    turns.end(number, say, false);
    isWhole &&= events.length <= MAX_EVENTS;
  };
  said.listen(child);
  for (const at of [1, 2]) {
    const stream = child.stdio[at];
    if (!stream?.push) continue;
    const { push } = stream;
    const keep = (data) => {
      parts[at].add(data);
      isWhole &&= parts[at].isWhole;
      note([at, data.length], () => {});
    };
    Object.defineProperty(stream, 'push', { configurable: true, writable: true, value(data, ...rest) {
      if (data !== null && data !== undefined) keep(typeof data === 'string' ? Buffer.from(data, rest[0]) : Buffer.from(data));
      return Reflect.apply(push, this, [data, ...rest]);
    } });
    if (typeof through[at] === 'number') {
      stream.on('data', (data) => write(through[at], data));
      held[at] = stream;
      child.stdio[at] = null;
      child[at === 1 ? 'stdout' : 'stderr'] = null;
    }
  }
  let done = false;
  // `say` tells the program that it is closed, if it is ever told.
  const finish = (say) => {
    if (done) {
      say?.();
      return;
    }
    done = true;
    if (isWhole) tell(say !== undefined);
    if (say) turns.end(number, say);
    else turns.forget(number);
  };
  const tell = (closes) => {
    const { pid, exitCode, signalCode } = child;
    const args = { spawn, code: signalCode ? -signalNumber(signalCode) : exitCode ?? 0, pid: pid ?? 0, events };
    for (const [at, name] of [[1, 'stdout'], [2, 'stderr']]) {
      if (child.stdio[at] || typeof through[at] === 'number') args[name] = parts[at].value();
    }
    if (error) args.error = error;
    if (!closes) args.closes = false;
    effects.channel.send('observe', 'proc.result', args);
  };
  // A child with a channel for messages that was told to close it never says that it is closed itself.
  const streams = [1, 2].map((at) => child.stdio[at] ?? held[at]).filter((stream) => stream?.push);
  const over = () => {
    if (!child.send || (child.exitCode === null && child.signalCode === null) || streams.some((one) => !one.closed)) return;
    soon(soon, finish);
  };
  for (const stream of streams) stream.once('close', over);
  const { emit: emits } = child;
  Object.defineProperty(child, 'emit', { configurable: true, writable: true, value(name, ...given) {
    let heard = false;
    const say = () => { heard = Reflect.apply(emits, this, [name, ...given]); };
    if (name === 'error') error ??= failureOf(given[0]);
    if (name === 'close') finish(say);
    else if (name === 'exit' || name === 'disconnect') note([name], say);
    else if (name === 'message') note([name, given[0]], say);
    else say();
    if (name === 'exit') over();
    return heard;
  } });
}

// What is needed to raise an error of a start again.
function failureOf(error) {
  const { message, code, errno, syscall, path, spawnargs } = error;
  return { message, code, errno, syscall, path, spawnargs };
}

const raised = ({ message, ...more }) => Object.assign(new Error(message), more);

// A stream of a child that is not there.
const playedOut = () => Object.assign(new Readable({ read() {} }), { ref() {}, unref() {} });
const playedIn = () => Object.assign(new Writable({ write(_, __, done) { done(); } }), { ref() {}, unref() {} });

// Let a child say what was recorded of it. `options` are those of ChildProcess.prototype.spawn.
function play(effects, child, options, recorded) {
  const { code = 0, pid, error, closes = true } = recorded;
  const [out, err] = ['stdout', 'stderr'].map((name) => unpacked(effects.tape, recorded[name]) ?? Buffer.alloc(0));
  const rest = { 1: out, 2: err };
  const events = Array.isArray(recorded.events) ? [...recorded.events] : [[1, out.length], [2, err.length], ['exit']];
  const said = new Said(tellInput(effects));
  const own = inherited(options.stdio ?? 'pipe');
  const all = Array.isArray(options.stdio) ? options.stdio : Array(3).fill(options.stdio ?? 'pipe');
  const isPipe = (at) => ['pipe', 'overlapped', undefined, null].includes(all[at]);
  Object.assign(child, { spawnfile: options.file, spawnargs: options.args ?? [options.file], pid: error ? undefined : pid });
  child.stdio = all.map((one, at) => (isPipe(at) ? (at === 0 ? playedIn() : playedOut()) : null));
  [child.stdin, child.stdout, child.stderr] = child.stdio;
  child._handle = { kill: () => 0, ref() {}, unref() {}, hasRef: () => false, close() {} };
  if (all.includes('ipc')) connect(child);
  said.listen(child);
  let waits = false;
  const { turns } = effects.tape;
  const number = turns.begin();

  const step = () => {
    waits = false;
    while (events.length) {
      const [kind, ...given] = events[0];
      // It goes on when this process has said as much as it had then.
      if (kind === 'after' && !said.reaches(given)) return;
      events.shift();
      if (kind === 'after') continue;
      turns.end(number, () => {
        say(kind, given);
        later();
      }, false);
      return;
    }
    if (closes) close(() => turns.end(number, () => child.emit('close', child.exitCode, child.signalCode)));
    else close(() => turns.forget(number));
  };
  const later = () => {
    if (waits) return;
    waits = true;
    soon(step);
  };
  said.hear = () => { if (events[0]?.[0] === 'after') later(); };

  function say(kind, [first]) {
    if (kind === 1 || kind === 2) {
      const data = rest[kind].subarray(0, first);
      rest[kind] = rest[kind].subarray(first);
      if (child.stdio[kind]) child.stdio[kind].push(data);
      else if (typeof own[kind] === 'number') write(own[kind], data);
    } else if (kind === 'message') {
      child.emit('message', first);
    } else if (kind === 'disconnect') {
      child.connected = false;
      child.emit('disconnect');
    } else if (kind === 'exit') {
      child.signalCode = code < 0 ? signalName(-code) : null;
      child.exitCode = code < 0 ? null : code;
      child._handle = null;
      child.emit('exit', child.exitCode, child.signalCode);
    }
  }

  function close(closed) {
    const open = child.stdio.slice(1).filter((stream) => stream);
    let left = open.length;
    const done = () => { if (--left <= 0) closed(); };
    if (!left) done();
    child.stdin?.destroy();
    for (const stream of open) {
      if (stream.closed) {
        done();
        continue;
      }
      stream.once('close', done);
      stream.push(null);
      // Nobody reads it: the runtime lets it flow out too.
      if (stream.readableFlowing === null && !stream.listenerCount('readable')) stream.resume();
    }
  }

  process.nextTick(() => {
    if (error) {
      child._handle = null;
      child.exitCode = error.errno;
      child.emit('error', raised(error));
    } else {
      child.emit('spawn');
    }
    later();
  });
  return 0;
}

function connect(child) {
  child.connected = true;
  child.channel = { ref() {}, unref() {}, hasRef: () => true };
  child.send = (message, ...rest) => {
    const callback = rest.find((one) => typeof one === 'function');
    if (callback) process.nextTick(callback, null);
    return true;
  };
  child.disconnect = () => {
    if (!child.connected) return;
    child.connected = false;
    process.nextTick(() => child.emit('disconnect'));
  };
}

module.exports = { failureOf, inherited, play, raised, record, recordable, signalName, signalNumber, tellInput, write };
