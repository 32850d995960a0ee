// SPDX-License-Identifier: MIT
// What a program saw of clocks, in one lane: kept and sent many at a time while a run is recorded, served from the host
// while it is replayed.
'use strict';

const { isDeepStrictEqual } = require('node:util');

const { Turns } = require('./turns.cjs');

const MAX_KEPT = 64;
// After so many observations that were not known before, the host is asked for those that come; the less it helps, the
// later.
const MIN_UNKNOWN = 8;
const MAX_UNKNOWN = 4096;
const DIRECTORY = `${__dirname}/`;

// A replay does not do what the recorded run did. The host ends it; to catch this changes nothing.
class ReplayDivergence extends Error {
  constructor(message) {
    super(message);
    this.name = 'ReplayDivergence';
  }
}

// The innermost line of the program among those that are running, as {file, line}; {} when none is.
function whereabouts() {
  const { prepareStackTrace, stackTraceLimit } = Error;
  const holder = {};
  try {
    Error.stackTraceLimit = 40;
    Error.prepareStackTrace = (_, frames) => frames;
    Error.captureStackTrace(holder, whereabouts);
    for (const frame of Array.isArray(holder.stack) ? holder.stack : []) {
      const file = frame.getFileName();
      if (!file || file.startsWith('node:') || file.startsWith(DIRECTORY)) continue;
      return { file: file.startsWith('file://') ? decodeURIComponent(file.slice(7)) : file, line: frame.getLineNumber() ?? 0 };
    }
    return {};
  } catch {
    return {};
  } finally {
    Object.assign(Error, { prepareStackTrace, stackTraceLimit });
  }
}

function isSame(one, other) {
  const names = Object.keys(one);
  if (names.length !== Object.keys(other).length) return false;
  for (const name of names) if (one[name] !== other[name] && !isDeepStrictEqual(one[name], other[name])) return false;
  return true;
}

class Tape {
  constructor(channel, replay) {
    Object.assign(this, { channel, replay });
    this.kept = [];
    this.served = [];
    this.next = 0;
    this.ending = false;
    // What comes next in this lane of a replay without a gap, as the host told: [kind, op, args, result].
    this.coming = [];
    this.reached = 0;
    this.unknown = 0;
    this.patience = MIN_UNKNOWN;
    this.turns = new Turns(this);
    // The lane's random bytes, where they are not the real ones.
    this.random = null;
    if (replay) channel.at = (lane, expected) => this.at(lane, expected);
    channel.ahead = () => (replay ? this.moved() : this.flush());
  }

  // The value of a call by its name: what `real` gives, or what it gave when the run was recorded.
  call(name, real) {
    if (this.replay) return this.serve(name);
    const value = real();
    const last = this.kept[this.kept.length - 1];
    // A loop that waits for the clock sees the same again and again.
    if (last?.[1] === value && last[0] === name && Number.isSafeInteger(value)) {
      if (last.length === 2) last.push([[0]]);
      last[2][0][0]++;
    } else {
      this.kept.push([name, value]);
    }
    if (this.kept.length >= MAX_KEPT || this.ending) this.flush();
    return value;
  }

  serve(name) {
    const waiting = this.served[this.next];
    if (waiting?.[0] === name) return this.take(waiting);
    const { calls } = this.ask('serve', 'clock.values', { call: name });
    this.served = Array.isArray(calls) ? calls : [];
    this.next = 0;
    if (this.served[0]?.[0] !== name) throw new ReplayDivergence(`agentbox: the host served another call than ${name}`);
    return this.take(this.served[0]);
  }

  // One call of those that were served: [name, value], or [name, value, times] for so many that saw the same.
  take(call) {
    const [, value, times = 1] = call;
    if (times > 1) call[2] = times - 1;
    else this.next++;
    this.moved();
    return value;
  }

  // What will be called next, as far as it is a call at all; undefined when something else comes first.
  peek() {
    if (this.next >= this.served.length) {
      const { calls } = this.ask('serve', 'clock.next', {});
      this.served = Array.isArray(calls) ? calls : [];
      this.next = 0;
    }
    return this.served[this.next];
  }

  // What the host told of the steps that come.
  expect(steps) {
    this.coming = Array.isArray(steps) ? steps : [];
    this.reached = 0;
    this.unknown = 0;
  }

  // Whether a step is the next that the host told; then nobody needs to say where the program stands. The result of an
  // effect is `result` of what is given back, null when it is not the next.
  expected(kind, op, args) {
    const next = this.coming[this.reached];
    if (next?.[0] === kind && next[1] === op && isSame(next[2], args)) {
      this.reached++;
      return { result: next[3] };
    }
    this.expect([]);
    return null;
  }

  // `expected` for an observation. When many were not known, those that come are asked for.
  foreseen(op, args) {
    if (this.reached < this.coming.length) return this.expected('observe', op, args) !== null;
    if (++this.unknown < this.patience) return false;
    this.expect(this.ask('serve', 'steps.next', {}).steps);
    this.patience = this.coming.length > MIN_UNKNOWN ? 1 : Math.min(2 * this.patience, MAX_UNKNOWN);
    return this.coming.length > 0 && this.expected('observe', op, args) !== null;
  }

  // The result of a question in a replay. Throws ReplayDivergence.
  ask(kind, op, args, lane = this.channel.own) {
    let answer;
    try {
      answer = this.channel.ask(kind, op, args, { lane });
    } catch (error) {
      throw new ReplayDivergence(`agentbox: the host does not answer: ${error.message}`);
    }
    if (answer.ok !== true) throw new ReplayDivergence(`agentbox: ${answer.error || `${op} is refused by the host`}`);
    return answer.result ?? {};
  }

  // The program went on in what was recorded.
  moved() { this.turns.moved(); }

  // Send what is kept.
  flush() {
    if (!this.kept.length) return;
    const calls = this.kept;
    this.kept = [];
    this.channel.send('observe', 'clock.values', { calls }, { lane: this.channel.own });
  }

  // What goes with a question: where the program stands, and what was served to it and not used. The host takes that back.
  at(lane, expected) {
    const where = expected ? {} : whereabouts();
    if (lane !== this.channel.own) return where;
    const unused = this.served.length - this.next;
    this.served = [];
    this.next = 0;
    return unused > 0 ? { ...where, unused } : where;
  }

  // The thread ends: what is called from now on is sent at once.
  end() {
    if (!this.replay) {
      this.ending = true;
      this.flush();
    } else {
      try {
        this.pass();
        if (this.next < this.served.length) this.channel.ask('serve', 'clock.rest', {}, { lane: this.channel.own });
      } catch {
        // The host knows what was not called.
      }
    }
  }

  // Turns of what ended alone this time, when there was no order to keep any more: nobody asked for them.
  pass() {
    if (!this.turns.begun) return;
    for (let call = this.peek(); call && this.turns.isOver(call); call = this.peek()) this.take(call);
  }
}

module.exports = { ReplayDivergence, Tape, whereabouts };
