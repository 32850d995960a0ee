// SPDX-License-Identifier: MIT
// globalThis.agentbox, the functions for agents: each is one effect, recorded with its result or its error. What it does
// inside itself is judged and observed like anything else, in a lane that no replay looks at. In a replay nothing of it
// happens: the host gives what was recorded.
'use strict';

const child = require('node:child_process');
const { createHash, randomBytes } = require('node:crypto');
const fs = require('node:fs');
const { types: { isUint8Array } } = require('node:util');

const { signalNumber } = require('./children.cjs');
const { AgentboxPolicyError, CheckpointError } = require('./effects.cjs');
const { redactedHeaders, redactedUrl } = require('./redaction.cjs');
const { named, native, plainPath, textOf } = require('./resolve.cjs');
const { ReplayDivergence } = require('./tape.cjs');
const { packed, unpacked } = require('./values.cjs');
const { fetched } = require('./web.cjs');

const { now } = Date;
const { captureStackTrace } = Error;
const MAX_TEXT_BYTES = 64 << 20;
const MAX_WITHIN = 16 << 10;
const KINDS = { Error, TypeError, RangeError, AgentboxPolicyError, CheckpointError };
const TOLD = ['code', 'errno', 'syscall', 'path', 'dest', 'address', 'port', 'hostname'];
const LARGE = ['body', 'stdout', 'stderr'];
const MEMBERS = ['bytes', 'status', 'code', 'body', 'stdout', 'stderr', 'sha256'];

// What is recorded of an error: enough to raise one like it.
function told(error) {
  if (!(error instanceof Error)) return { type: 'Error', message: String(error) };
  const type = Object.hasOwn(KINDS, error.name) || error.name === 'TimeoutError' ? error.name : error.constructor.name;
  const found = { type, message: String(error.message) };
  if (error instanceof AgentboxPolicyError) found.message = found.message.replace(/^agentbox: /, '');
  for (const name of TOLD) if (['string', 'number'].includes(typeof error[name])) found[name] = error[name];
  return found;
}

function raised({ type, message, ...more }) {
  const Kind = Object.hasOwn(KINDS, type) ? KINDS[type] : Error;
  const error = Object.assign(new Kind(message), more);
  if (type === 'TimeoutError') error.name = type;
  return error;
}

const bytesOf = (name, data) => {
  if (data === undefined || data === null) return undefined;
  if (typeof data === 'string') return Buffer.from(data);
  if (isUint8Array(data)) return Buffer.from(data);
  throw new TypeError(`agentbox.${name} takes text or bytes here, not ${typeof data}`);
};

const pathOf = (name, given) => {
  const text = textOf(plainPath(given));
  if (text === null) throw new TypeError(`agentbox.${name} takes a path: text, bytes or a file: URL`);
  return text;
};

const secondsOf = (name, given) => {
  if (given === undefined || given === null) return undefined;
  if (typeof given === 'number' && given > 0 && given < 2 ** 31 / 1000) return given;
  throw new RangeError(`agentbox.${name}: timeoutSeconds is a number above 0 and below ${Math.floor(2 ** 31 / 1000)}`);
};

const hashed = (data) => createHash('sha256').update(data).digest('hex');

class Client {
  // Made when the doors have their guards, and before the program can replace them.
  constructor(effects) {
    this.effects = effects;
    this.channel = effects.channel;
    this.gets = 0;
    const { mkdirSync, readFileSync, writeFileSync } = fs;
    Object.assign(this, { mkdirSync, readFileSync, writeFileSync, spawnSync: child.spawnSync });
  }

  inside(lane, act) { return this.channel.within(`${lane}>`, act); }

  record(op, args, result, lane) { this.channel.send('effect', op, args, { lane, result }); }

  // The recorded result of an effect; throws ReplayDivergence.
  asked(op, args, lane) {
    const isOwn = lane === this.channel.own;
    const { tape } = this.effects;
    const next = isOwn ? tape.expected('effect', op, args) : null;
    if (next) {
      this.channel.send('effect', op, args, { lane, expected: true });
      return next.result;
    }
    const { result, ahead } = this.effects.asked('effect', op, args, { lane, ahead: isOwn && 'steps' });
    if (isOwn) tape.expect(ahead);
    return result;
  }

  // A result as a record holds it: what is large beside it.
  kept(result) {
    const one = (value) => (typeof value === 'string' && Buffer.byteLength(value) > MAX_WITHIN
      ? packed(this.channel, Buffer.from(value)) : value);
    if (typeof result !== 'object') return one(result);
    return Object.fromEntries(Object.entries(result).map(([name, value]) => [name, LARGE.includes(name) ? one(value) : value]));
  }

  given(result) {
    const one = (value) => (typeof value === 'object' && value !== null ? String(unpacked(this.effects.tape, value) ?? '') : value);
    if (typeof result !== 'object' || result === null || result.kept !== undefined) return one(result);
    // A trace keeps no order of members.
    return Object.fromEntries(MEMBERS.filter((name) => name in result).map((name) => [name, one(result[name])]));
  }

  // Do an effect and record it, or get what was recorded; `again`: its act is done in a replay too.
  happens(public_, op, args, act, again = false) {
    const { own } = this.channel;
    let found;
    if (this.effects.replay) {
      found = this.asked(op, args, own);
      if (again && !found?.error) this.inside(own, act);
    } else {
      try {
        found = this.inside(own, act);
      } catch (error) {
        found = { error: told(error) };
      }
      this.record(op, args, this.kept(found), own);
    }
    if (found?.error) {
      const error = raised(found.error);
      captureStackTrace(error, public_);
      throw error;
    }
    return this.effects.replay ? this.given(found) : found;
  }

  readText(public_, given) {
    const path = pathOf('readText', given);
    return this.happens(public_, 'fs.read_text', { path: named(path) }, () => {
      const data = this.readFileSync(native(path));
      if (data.length > MAX_TEXT_BYTES) throw new RangeError(`agentbox.readText: the file is larger than ${MAX_TEXT_BYTES >> 20} MiB`);
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data);
    });
  }

  writeText(public_, given, text) {
    const path = pathOf('writeText', given);
    if (typeof text !== 'string') throw new TypeError(`agentbox.writeText writes text, not ${typeof text}`);
    const data = Buffer.from(text);
    return this.happens(public_, 'fs.write_text', { path: named(path), sha256: hashed(data) }, () => {
      const parent = path.slice(0, path.lastIndexOf('/'));
      if (parent) this.mkdirSync(native(parent), { recursive: true });
      this.writeFileSync(native(path), data);
      return { bytes: data.length };
    }, true);
  }

  run(public_, words, { timeoutSeconds, stdin } = {}) {
    if (!Array.isArray(words) || !words.length) throw new TypeError("agentbox.run takes a list of words, as ['git', 'status']");
    const argv = Array.from(words, String);
    const seconds = secondsOf('run', timeoutSeconds);
    const input = bytesOf('run', stdin);
    const args = { argv: argv.map(named) };
    if (seconds !== undefined) args.timeout_seconds = seconds;
    if (input) args.stdin_sha256 = hashed(input);
    return this.happens(public_, 'proc.run', args, () => {
      const timeout = seconds && Math.ceil(seconds * 1000);
      const done = this.spawnSync(argv[0], argv.slice(1), { input: input ?? '', maxBuffer: MAX_TEXT_BYTES, timeout, killSignal: 'SIGKILL' });
      if (done.error?.code === 'ETIMEDOUT') {
        throw Object.assign(new Error(`${argv[0]} was ended after ${seconds} s`), { name: 'TimeoutError', code: 'ETIMEDOUT' });
      }
      if (done.error) throw done.error;
      return { code: done.signal ? -signalNumber(done.signal) : done.status, stdout: String(done.stdout), stderr: String(done.stderr) };
    });
  }

  async get(public_, url, headers, { method = 'GET', body, timeoutSeconds } = {}) {
    if (typeof url !== 'string' && !(url instanceof URL)) throw new TypeError('agentbox.get takes an address as text');
    const address = String(url);
    const verb = String(method).toUpperCase();
    const given = Object.fromEntries(Object.entries(headers ?? {}).map(([name, value]) => [name, String(value)]));
    const data = bytesOf('get', body);
    const seconds = secondsOf('get', timeoutSeconds) ?? 30;
    const args = { url: redactedUrl(address) };
    if (verb !== 'GET') args.method = verb;
    if (Object.keys(given).length) args.headers = redactedHeaders(given);
    if (data) args.body_sha256 = hashed(data);
    if (seconds !== 30) args.timeout_seconds = seconds;
    // They may come to their end in another order than they began: each is a lane.
    const lane = `${this.channel.own}/get-${++this.gets}`;
    const found = await this.effects.turned(async () => {
      if (this.effects.replay) return this.asked('net.get', args, lane);
      try {
        return await this.fetch(address, { method: verb, headers: given, body: data, seconds, lane });
      } catch (error) {
        if (error instanceof ReplayDivergence) throw error;
        return { error: told(error) };
      }
    }, (result) => {
      if (!this.effects.replay) this.record('net.get', args, this.kept(result), lane);
    });
    if (found?.error) throw raised(found.error);
    return this.effects.replay ? this.given(found) : found;
  }

  async fetch(address, { lane, ...request }) {
    const { status, data } = await fetched(address, {
      ...request,
      refused: (target) => this.inside(lane, () => this.effects.deny('net', target)),
      within: (act) => this.inside(lane, act),
    });
    return { status, body: data.toString('utf8'), sha256: hashed(data) };
  }

  now(public_) { return this.happens(public_, 'clock.now', {}, now); }

  random(public_) { return this.happens(public_, 'rand.random', {}, () => randomBytes(6).readUIntBE(0, 6)); }
}

function install(effects) {
  const client = new Client(effects);
  const functions = {};
  for (const name of ['readText', 'writeText', 'get', 'run', 'now', 'random']) {
    functions[name] = { [name]: (...given) => client[name](functions[name], ...given) }[name];
  }
  Object.defineProperty(globalThis, 'agentbox', { value: Object.freeze(functions), configurable: true });
}

module.exports = { install };
