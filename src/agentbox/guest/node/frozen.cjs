// SPDX-License-Identifier: MIT
// What makes a thread of a recorded run repeat itself: its clocks, its randomness, and an end that leaves nothing unsent.
'use strict';

const clocks = require('./clocks.cjs');
const ordering = require('./ordering.cjs');
const random = require('./random.cjs');
const stacks = require('./stacks.cjs');

const isOwn = clocks.callerIsRuntime();

function install(tape, { seed, lane, live }) {
  if (!live) {
    clocks.install(tape, isOwn);
    tape.random = random.install(seed, lane, isOwn);
  }
  stacks.install();
  const end = () => tape.end();
  // Of the listeners this is the first; what others call after it is sent at once.
  process.on('exit', end);
  if (tape.replay) process.on('beforeExit', () => tape.turns.idle());
  const { kill, reallyExit } = process;
  process.reallyExit = (code) => {
    end();
    reallyExit.call(process, code);
  };
  process.kill = Object.defineProperty(function (pid, signal) {
    if (pid === process.pid && signal !== 0) tape.flush();
    return Reflect.apply(kill, process, [pid, signal]);
  }, 'name', { value: 'kill' });
}

// What stands on functions that have their guards.
function installAbove(tape) {
  if (tape.random) random.installNames(tape.random);
  ordering.install(tape.turns, isOwn);
}

module.exports = { install, installAbove };
