// SPDX-License-Identifier: MIT
// Verdicts become records for the host and errors that a program understands; paths become the files they mean.
'use strict';

const fs = require('node:fs');
const { createHash } = require('node:crypto');
const { fileURLToPath } = require('node:url');
const pathModule = require('node:path');

const { isBelow, covers } = require('./policy.cjs');

// Taken before they are replaced: what the guard itself reads asks nobody.
const { closeSync, fstatSync, lstatSync, openSync, readlinkSync, readSync, writeSync } = fs;
const cwd = process.cwd.bind(process);
const MAX_HASHED_BYTES = 1_000_000;
const MAX_LINKS = 40;
const CODE = /\.(?:js|cjs|mjs|json|node|ts|mts|cts|wasm|map)$/;
const TREES = [__dirname, '/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/nix/store', '/etc/ssl', '/etc/pki',
  '/etc/ca-certificates', '/proc/sys', '/sys/devices/system', '/sys/fs/cgroup', '/dev/fd', '/dev/pts'];
const FILES = new Set(['/etc/localtime', '/etc/timezone', '/etc/mime.types', '/etc/os-release', '/etc/hosts',
  '/etc/resolv.conf', '/etc/nsswitch.conf', '/etc/host.conf', '/etc/services', '/proc/cpuinfo', '/proc/meminfo',
  '/proc/stat', '/proc/version', '/proc/uptime', '/proc/loadavg', '/dev/null', '/dev/zero', '/dev/full', '/dev/random',
  '/dev/urandom', '/dev/tty', '/dev/ptmx']);
const OF_SELF = new Set(['status', 'stat', 'statm', 'maps', 'cmdline', 'comm', 'limits', 'cgroup', 'mounts', 'mountinfo',
  'io', 'fd', 'oom_score', 'oom_score_adj', 'environ', 'exe', 'smaps', 'smaps_rollup']);

function content(path) {
  const descriptor = openSync(path, fs.constants.O_RDONLY | fs.constants.O_NOFOLLOW | fs.constants.O_NONBLOCK);
  try {
    const data = Buffer.alloc(fstatSync(descriptor).size);
    let at = 0;
    for (let more = -1; more !== 0 && at < data.length; at += more) more = readSync(descriptor, data, at, data.length - at, null);
    return data.subarray(0, at);
  } finally {
    closeSync(descriptor);
  }
}

class AgentboxPolicyError extends Error {
  constructor(message) {
    super(message);
    this.name = 'AgentboxPolicyError';
    this.code = 'EACCES';
    this.errno = -13;
  }
}

class Effects {
  constructor({ answers, channel, enforce, strict, replay, privates, entry }) {
    Object.assign(this, { answers, channel, enforce, strict, replay, privates });
    this.entryDirectory = entry ? pathModule.dirname(entry) : '';
    this.lent = answers.lent.filter((base) => privates.some((root) => isBelow(base, root)));
    this.once = new Set();
    this.expectOnce();
  }

  // Record a denial and throw it, unless denials are only observed.
  deny(op, target) {
    const shown = String(target).slice(0, 4096);
    this.channel.send('deny', op, { target: shown, enforced: this.enforce });
    if (this.enforce) throw new AgentboxPolicyError(`agentbox: policy denies ${op} ${shown}`);
    writeSync(2, `agentbox[observe]: would deny ${op} ${shown}\n`);
  }

  observed(op, args) {
    if (this.replay) this.happens(op, args);
    else this.channel.send('observe', op, args);
  }

  // Record what changes something, and go on when the host has it.
  happens(op, args) {
    let answer;
    try {
      answer = this.channel.ask('observe', op, args);
    } catch (error) {
      throw new AgentboxPolicyError(`agentbox: ${op} is refused because the host cannot record it: ${error.message}`);
    }
    if (answer.ok !== true) throw new AgentboxPolicyError(`agentbox: ${answer.error || `${op} is refused by the host`}`);
  }

  // The text of what a program gave as path; null for a descriptor and for what the call itself will refuse.
  text(given) {
    if (typeof given === 'string') return given.includes('\0') ? null : given;
    if (given instanceof URL) return fileURLToPath(String(given));
    if (given instanceof Uint8Array) return Buffer.from(given).toString('utf8');
    return null;
  }

  // The file that a path means, links followed as the kernel does, and its lstat; `follow` false keeps a link at the end.
  resolve(given, follow = true) {
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
      found = lstatSync(here, { throwIfNoEntry: false, bigint: true }) ?? null;
      if (!found?.isSymbolicLink() || !(follow || waiting.length)) {
        done.push(part);
        continue;
      }
      if (++links > MAX_LINKS) throw new AgentboxPolicyError(`agentbox: too many links in ${given}`);
      const target = readlinkSync(here);
      if (target[0] === '/') done = [];
      else if (here.startsWith('/proc/') && target.includes(':')) {
        done.push(part);
        continue;
      }
      waiting.push(...target.split('/').reverse());
    }
    const full = `/${done.join('/')}`;
    return { full, found: found ?? lstatSync(full, { throwIfNoEntry: false, bigint: true }) ?? null };
  }

  // What a rule lends within a private directory is not private.
  isPrivate(path) {
    return this.privates.some((root) => isBelow(path, root)) && !this.lent.some((base) => isBelow(path, base));
  }

  isCode(path) {
    if (!CODE.test(path) || this.answers.writeBases.some((base) => isBelow(path, base))) return false;
    if (this.entryDirectory && isBelow(path, this.entryDirectory)) return true;
    return !this.strict && path.includes('/node_modules/');
  }

  // What needs no rule for reading.
  isViewed(path) {
    if (FILES.has(path) || TREES.some((tree) => isBelow(path, tree)) || this.isPrivate(path)) return true;
    const [, proc, pid, name] = path.split('/');
    return proc === 'proc' && (pid === 'self' || pid === String(process.pid)) && (!name || OF_SELF.has(name));
  }

  // Throw unless a path may be read; record that it is.
  read(given, record = true) {
    const text = this.text(given);
    if (text === null) return;
    const { full, found } = this.resolve(text);
    const identity = found && `${found.dev}:${found.ino}`;
    const { allowed, rule } = this.answers.read(full, identity);
    if (!allowed && rule) {
      this.deny('read', full);
      return;
    }
    if (this.isCode(full)) return;
    if (!allowed) {
      if (!this.isViewed(full) && !(found?.isDirectory() && !this.strict)) this.deny('read', full);
      return;
    }
    if (record) this.recordRead(full, found, identity);
  }

  recordRead(full, found, identity) {
    if (!found) {
      this.observed('fs.open_read', { path: full, exists: false });
      return;
    }
    if (found.isDirectory()) return;
    const args = { path: full };
    if (found.isFile() && found.size <= MAX_HASHED_BYTES) {
      try {
        args.sha256 = createHash('sha256').update(content(full)).digest('hex');
      } catch {
        args.size = Number(found.size);
      }
    } else if (found.isFile()) {
      args.size = Number(found.size);
    }
    const counts = this.once.has(identity) || this.answers.onceTargets.some((target) => covers(target, full));
    if (counts) this.happens('fs.open_read', { ...args, identity, once: true });
    else this.observed('fs.open_read', args);
  }

  // Throw unless a path may be written; gives it when the change is to be recorded.
  mayWrite(given, { follow = false, whole = false } = {}) {
    const text = this.text(given);
    if (text === null) return null;
    const { full, found } = this.resolve(text.replace(/(?<=.)\/+$/, ''), follow);
    const { allowed, rule } = this.answers.write(full, null, null, whole);
    if (!allowed) {
      if (!rule && (this.isPrivate(full) || full.startsWith('/dev/pts/') || ['/dev/null', '/dev/tty'].includes(full))) return null;
      this.deny('write', full);
    }
    return { full, found };
  }

  // One path that is made, removed or changed.
  change(op, given, options) {
    const target = this.mayWrite(given, options);
    if (target) this.happens(op, { path: target.full });
    return target;
  }

  expectOnce() {
    for (const [, base] of this.answers.onceTargets) {
      const found = lstatSync(base, { throwIfNoEntry: false, bigint: true });
      if (!found?.isFile()) continue;
      this.once.add(`${found.dev}:${found.ino}`);
      this.answers.expectOnce(`${found.dev}:${found.ino}`);
    }
  }
}

module.exports = { AgentboxPolicyError, Effects };
