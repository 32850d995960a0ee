// SPDX-License-Identifier: MIT
// Verdicts become records for the host and errors that a program understands; paths become the files they mean.
'use strict';

const fs = require('node:fs');
const pathModule = require('node:path');

const { isBelow, covers } = require('./policy.cjs');
const resolving = require('./resolve.cjs');
const { hashOf } = require('./hashing.cjs');
const { ReplayDivergence } = require('./tape.cjs');

const { HALF, identityOf, lookAt, named } = resolving;
const { writeSync } = fs;
const MAX_TARGET = 4096;
const MAX_UNSEEN = 10_000;
const CODE = /\.(?:js|cjs|mjs|json|node|ts|mts|cts|wasm|map)$/;
const TREES = [__dirname, '/usr', '/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32', '/nix/store', '/etc/ssl', '/etc/pki',
  '/etc/ca-certificates', '/proc/sys', '/sys/devices/system', '/sys/fs/cgroup', '/dev/fd', '/dev/pts'];
const FILES = new Set(['/etc/localtime', '/etc/timezone', '/etc/mime.types', '/etc/os-release', '/etc/hosts',
  '/etc/resolv.conf', '/etc/nsswitch.conf', '/etc/host.conf', '/etc/services', '/proc/cpuinfo', '/proc/meminfo',
  '/proc/stat', '/proc/version', '/proc/uptime', '/proc/loadavg', '/dev/null', '/dev/zero', '/dev/full', '/dev/random',
  '/dev/urandom', '/dev/tty', '/dev/ptmx']);
const OF_SELF = new Set(['status', 'stat', 'statm', 'maps', 'cmdline', 'comm', 'limits', 'cgroup', 'mounts', 'mountinfo',
  'io', 'fd', 'oom_score', 'oom_score_adj', 'environ', 'exe', 'smaps', 'smaps_rollup']);

// Text that may hold bytes that are no UTF-8, as a person sees it.
const printable = (text) => text.replace(new RegExp(HALF, 'gu'), (half) => `\\x${(half.charCodeAt(0) & 0xff).toString(16)}`);

// A descriptor of this process whose link was not followed: a pipe or a socket, such as /dev/stdout.
function isOpenAlready(path) {
  const [, proc, pid, fd, number, ...more] = path.split('/');
  return proc === 'proc' && (pid === 'self' || pid === String(process.pid)) && fd === 'fd' && /^\d+$/.test(number) && !more.length;
}

class AgentboxPolicyError extends Error {
  constructor(message) {
    super(message);
    this.name = 'AgentboxPolicyError';
    this.code = 'EACCES';
    this.errno = -13;
  }
}

// The host could not keep what is there before the program changes it, so that nothing may be changed.
class CheckpointError extends AgentboxPolicyError {
  constructor(message) {
    super(message);
    this.name = 'CheckpointError';
  }
}

// A number of bytes in a host's answer.
const granted = (answer) => (Number.isSafeInteger(answer.result?.size) ? answer.result.size : 0);

class Effects {
  // `tape` is that of a run that is recorded for a replay, or replayed; null for any other.
  constructor({ answers, channel, enforce, strict, tape, privates, entry }) {
    Object.assign(this, { answers, channel, enforce, strict, tape, privates });
    this.replay = tape?.replay ?? false;
    // How many programs this thread started.
    this.spawns = 0;
    this.entryDirectory = entry ? pathModule.dirname(entry) : '';
    this.lent = answers.lent.filter((base) => privates.some((root) => isBelow(base, root)));
    this.once = new Set();
    this.expectOnce();
    // Directories above what may be seen may be seen too, or nobody would get there.
    this.above = new Set();
    for (const base of [...answers.lent, ...privates, ...TREES, ...FILES, this.entryDirectory, process.cwd()]) {
      for (let at = base; at; at = at.slice(0, at.lastIndexOf('/'))) this.above.add(at);
    }
    this.above.add('/');
    this.unseen = new Set();
  }

  // Record a denial, with `more` members beside the target, and throw it, unless denials are only observed.
  deny(op, target, more = {}) {
    const shown = String(target).slice(0, MAX_TARGET);
    this.channel.send('deny', op, { target: named(shown), enforced: this.enforce, ...more });
    if (this.enforce) throw new AgentboxPolicyError(`agentbox: policy denies ${op} ${printable(shown)}`);
    this.wouldDeny(`${op} ${printable(shown)}`);
  }

  wouldDeny(text) {
    try {
      writeSync(2, `agentbox[observe]: would deny ${text}\n`);
    } catch {
      // Nobody listens.
    }
  }

  observed(op, args, where) {
    this.channel.send('observe', op, args, this.replay ? this.foreseen(op, args, where) : where);
  }

  // In a replay, `where` of what is recorded of this lane; with `expected` when the host said that it comes.
  foreseen(op, args, where) {
    const { lane, own } = this.channel;
    return (where?.lane ?? lane) === own && this.tape.foreseen(op, args) ? { ...where, expected: true } : where;
  }

  // Record what changes something, and go on when the host has it; its answer. `where` may name another lane.
  happens(op, args, where) {
    // In a replay only these have an answer that matters: the host ends one that does something else by itself.
    if (!this.replay || op === 'proc.spawn' || args.once) return this.asked('observe', op, args, where);
    this.observed(op, args, where);
    return {};
  }

  // Ask for what the host counts; how many bytes it grants.
  counts(op, args) {
    return granted(this.asked('count', op, args));
  }

  // The result of something that ends later, in its turn; `act` throws nothing. `ended` is told before the program.
  async turned(act, ended) {
    const turns = this.tape?.turns;
    const number = turns?.begin();
    const result = await act();
    if (!turns) {
      ended(result);
      return result;
    }
    return new Promise((resolve) => {
      turns.end(number, () => {
        ended(result);
        resolve(result);
      });
    });
  }

  asked(kind, op, args, where) {
    let answer;
    try {
      answer = this.channel.ask(kind, op, args, where);
    } catch (error) {
      throw new AgentboxPolicyError(`agentbox: ${op} is refused because the host cannot record it: ${error.message}`);
    }
    if (answer.ok === true) return answer;
    if (answer.diverged === true) throw new ReplayDivergence(`agentbox: ${answer.error}`);
    if (answer.checkpoint === true) throw new CheckpointError(`agentbox: ${answer.error}`);
    const reason = printable(String(answer.error || `${op} is refused by the host`));
    if (answer.denied !== true || this.enforce) throw new AgentboxPolicyError(`agentbox: ${reason}`);
    this.wouldDeny(reason.replace(/^policy denies /, ''));
    return answer;
  }

  resolve(text, follow = true) {
    try {
      return resolving.resolve(text, follow);
    } catch (error) {
      if (!(error instanceof resolving.TooManyLinks)) throw error;
      throw new AgentboxPolicyError(`agentbox: too many links in ${printable(text)}`);
    }
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

  // Throw unless a path may be read; record that it is. `text` is that of a plain path, null for what is none; `where`
  // may name another lane for the record.
  read(text, record = true, where = undefined) {
    if (text === null) return;
    const { full, found } = this.resolve(text);
    const identity = found && identityOf(found);
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
    if (record) this.recordRead(full, found, identity, where);
  }

  // Whether a path may be looked at: whether it exists, and how large it is.
  sees(text, follow = true) {
    if (!this.strict || !this.enforce || text === null) return true;
    const { full } = this.resolve(text, follow);
    const { allowed, rule } = this.answers.look(full);
    if (allowed || (!rule && (this.above.has(full) || this.isViewed(full) || this.isCode(full)))) return true;
    if (!this.unseen.has(full) && this.unseen.size < MAX_UNSEEN) {
      this.unseen.add(full);
      this.channel.send('deny', 'read', { target: named(full), enforced: true });
    }
    return false;
  }

  recordRead(full, found, identity, where) {
    const path = named(full);
    if (!found) {
      this.observed('fs.open_read', { path, exists: false }, where);
      return;
    }
    if (found.isDirectory()) return;
    const args = { path };
    if (found.isFile()) {
      try {
        args.sha256 = hashOf(full, found);
      } catch {
        args.size = Number(found.size);
      }
    }
    if (this.isCounted(full, identity)) this.happens('fs.open_read', { ...args, identity, once: true }, where);
    else this.observed('fs.open_read', args, where);
  }

  isCounted(full, identity) {
    return this.once.has(identity) || this.answers.onceTargets.some((target) => covers(target, full));
  }

  // Throw unless a path may be written; gives it when the change is to be recorded.
  mayWrite(text, { follow = false, whole = false } = {}) {
    if (text === null) return null;
    // A slash at the end means what the link points to.
    const { full, found } = this.resolve(text, follow || text.endsWith('/'));
    const { allowed, rule } = this.answers.write(full, null, null, whole);
    if (!allowed) {
      const device = full.startsWith('/dev/pts/') || ['/dev/null', '/dev/tty'].includes(full);
      if (!rule && (device || this.isPrivate(full) || isOpenAlready(full))) return null;
      this.deny('write', full);
    }
    return { full, found };
  }

  // One path that is made, removed or changed.
  change(op, text, options) {
    const target = this.mayWrite(text, options);
    if (target) this.happens(op, { path: named(target.full) });
    return target;
  }

  expectOnce() {
    for (const [, base] of this.answers.onceTargets) {
      const found = lookAt(base);
      if (!found?.isFile()) continue;
      this.once.add(identityOf(found));
      this.answers.expectOnce(identityOf(found));
    }
  }
}

module.exports = { AgentboxPolicyError, CheckpointError, Effects, printable };
