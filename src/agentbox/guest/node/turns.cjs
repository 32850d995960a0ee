// SPDX-License-Identifier: MIT
// The order in which things that were begun come to their end: files that are read, timers, programs, requests. Which of
// several is first is chance; a recorded run keeps it, and a replay gives it again. Where only one thing is on its way
// there is no order, and nothing is kept.
'use strict';

const { AsyncResource } = require('node:async_hooks');

// The runtime's own, for what the program shall not see.
const { clearTimeout: clear, setImmediate: soon, setTimeout: after } = globalThis;
const TURN = 'async.turn';
// A replay that waits longer than this for something that was not even begun goes on with what it has, and is in a hurry
// from then on. What is not as it was shows then.
const MAX_WAIT_MS = 20_000;
const HURRY_MS = 50;
// Nothing can be delivered now: what comes first is on its way, or nobody knows.
const LATER = -1;
const PERHAPS = -2;

// A frame of this file stands nearest to the program, whatever calls it: see stacks.cjs.
const called = (go) => go();

class Turns {
  constructor(tape) {
    this.tape = tape;
    this.begun = 0;
    this.open = 0;
    // Those that may still end, in a replay.
    this.live = new Set();
    this.held = [];
    this.looks = false;
    this.asks = false;
    this.patience = null;
    this.wait = MAX_WAIT_MS;
  }

  // Something begins; its number.
  begin() {
    this.open++;
    this.begun++;
    if (this.tape.replay) this.live.add(this.begun);
    return this.begun;
  }

  // It does not happen after all, or never ends any more.
  forget(number) {
    this.open--;
    this.live.delete(number);
  }

  // A part of it ends: the program's function is called in its turn. `last` says that it was all.
  end(number, go, last = true) {
    if (this.open === 1 && !this.held.length) {
      if (last) this.forget(number);
      go();
      return;
    }
    if (!this.tape.replay) {
      if (last) this.forget(number);
      this.tape.call(TURN, () => number);
      go();
      return;
    }
    const { held } = this;
    const context = new AsyncResource('AGENTBOX');
    held.push({ number, last, go: () => context.runInAsyncScope(called, null, go) });
    this.look();
  }

  // Whether a recorded call is the turn of something that has ended.
  isOver([name, number]) { return name === TURN && number <= this.begun && !this.live.has(number); }

  // `end` for one that is awaited.
  ended(number, last = true) {
    return new Promise((resolve) => { this.end(number, resolve, last); });
  }

  // What was held is not wanted any more.
  drop(number) {
    this.held = this.held.filter((one) => one.number !== number);
    this.live.delete(number);
  }

  // Look for whose turn it is, when the program has done all that it does now.
  look() {
    if (this.looks) return;
    this.looks = true;
    soon(() => {
      this.looks = false;
      if (this.held.length) this.deliver(this.next());
    });
  }

  next() {
    this.asks = true;
    const [name, number] = this.tape.peek() ?? [];
    this.asks = false;
    if (name === TURN) {
      const at = this.held.findIndex((one) => one.number === number);
      if (at >= 0) this.tape.call(TURN);
      if (at >= 0) return at;
      if (this.live.has(number)) return LATER;
      // What had ended by itself alone left no turn; the next one is of something that it begins.
      return this.open === 1 && number > this.begun ? 0 : PERHAPS;
    }
    return this.open === 1 ? 0 : PERHAPS;
  }

  deliver(at) {
    if (at === LATER) return;
    if (at < 0) {
      this.patience ??= after(() => {
        this.patience = null;
        this.wait = HURRY_MS;
        if (this.held.length) this.deliver(0);
      }, this.wait);
      return;
    }
    clear(this.patience ?? undefined);
    this.patience = null;
    const [one] = this.held.splice(at, 1);
    if (one.last) this.forget(one.number);
    if (this.held.length) this.look();
    one.go();
  }

  // Nothing else is on its way: what is held is not held for anything.
  idle() {
    if (!this.held.length) return;
    this.wait = HURRY_MS;
    this.deliver(0);
  }

  // The program did something that was recorded: perhaps it is the turn of what is held.
  moved() { if (this.held.length && !this.asks) this.look(); }
}

module.exports = { Turns };
