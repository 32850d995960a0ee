// SPDX-License-Identifier: MIT
// Threads: each has a guard, a lane whose name is the same in the next run, and the seed of the run.
'use strict';

const { createHash } = require('node:crypto');
const workers = require('node:worker_threads');

const { dressed } = require('./dressing.cjs');

const { isMainThread, parentPort, getEnvironmentData, setEnvironmentData } = workers;
// How a thread hands these to one that it starts: taken away before any code of the program runs there.
const HANDED = 'agentbox.thread';
const MAX_LANE = 63;
const KEPT_OF_LANE = 47;
const SAYINGS = new Set(['online', 'message', 'messageerror', 'error', 'exit']);

// The lane of this thread, and the seed of a run that is recorded or replayed, as bytes; null where it is neither. It is
// taken out of the environment: what this process starts is no part of a replay, and would draw the same bytes. `live`:
// clocks and randomness are the real ones all the same.
function beginning(env) {
  if (isMainThread) {
    const { AGENTBOX_SEED: text = '', AGENTBOX_CLOCKS: clocks = 'recorded' } = env;
    for (const name of ['AGENTBOX_SEED', 'AGENTBOX_CLOCKS']) delete env[name];
    if (clocks !== 'recorded' && clocks !== 'live') throw new Error('AGENTBOX_CLOCKS is neither recorded nor live');
    if (text && !/^[0-9a-f]{64}$/.test(text)) throw new Error('AGENTBOX_SEED is not 64 hexadecimal digits');
    return { lane: 'main', seed: text ? Buffer.from(text, 'hex') : null, live: clocks === 'live' };
  }
  const { lane = 'worker', seed = '', live = false } = getEnvironmentData(HANDED) ?? {};
  setEnvironmentData(HANDED, undefined);
  // The loader's own thread has no port.
  if (parentPort === null) return { lane: `${lane}>`, seed: null, live };
  return { lane, seed: seed ? Buffer.from(seed, 'hex') : null, live };
}

// A worker that reads other options than this thread would start without the guard. The class is replaced whole: a
// subclass would have the original as its prototype.
function install({ lane, seed, live }, turns, kept, shim) {
  const { Worker } = workers;
  let started = 0;
  function Guarded(file, given = {}) {
    const options = { ...given };
    if (options.execArgv) options.execArgv = ['--require', shim, ...Array.from(options.execArgv, String)];
    if (options.env !== workers.SHARE_ENV) options.env = { ...(options.env ?? process.env), ...kept };
    setEnvironmentData(HANDED, { lane: shortened(`${lane}.${started}`), seed: seed ? seed.toString('hex') : '', live });
    try {
      const worker = Reflect.construct(Worker, [file, options], new.target ?? Guarded);
      started++;
      if (turns) inTurn(worker, turns);
      return worker;
    } finally {
      setEnvironmentData(HANDED, undefined);
    }
  }
  Guarded.prototype = Worker.prototype;
  Worker.prototype.constructor = Guarded;
  workers.Worker = dressed(Guarded, Worker);
}

// As guard/lanes.py shortens names.
const shortened = (name) => (name.length <= MAX_LANE ? name
  : `${name.slice(0, KEPT_OF_LANE)}#${createHash('sha256').update(name).digest('hex').slice(0, 15)}`);

// What a worker says comes in its turn: several speak at once.
function inTurn(worker, turns) {
  const { emit } = worker;
  const number = turns.begin();
  Object.defineProperty(worker, 'emit', { configurable: true, writable: true, value(name, ...given) {
    if (!SAYINGS.has(name)) return Reflect.apply(emit, this, [name, ...given]);
    const listeners = this.rawListeners(name);
    turns.end(number, () => {
      // One whose turn comes when the worker has ended: the runtime took its listeners away.
      if (name !== 'message' || this.listenerCount(name)) Reflect.apply(emit, this, [name, ...given]);
      else for (const listener of listeners) Reflect.apply(listener, this, given);
    }, name === 'exit');
    return listeners.length > 0;
  } });
}

module.exports = { beginning, install };
