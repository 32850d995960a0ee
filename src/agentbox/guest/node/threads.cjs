// SPDX-License-Identifier: MIT
// Threads: each has a guard, a lane whose name is the same in the next run, and the seed of the run.
'use strict';

const workers = require('node:worker_threads');

const { dressed } = require('./dressing.cjs');

const { isMainThread, parentPort, getEnvironmentData, setEnvironmentData } = workers;
// How a thread hands these to one that it starts: taken away before any code of the program runs there.
const HANDED = 'agentbox.thread';
const MAX_LANE = 64;

// The lane of this thread, and the seed of a run that is recorded or replayed, as bytes; null where it is neither. Only the
// command's own process uses it: what else is started is no part of a replay, and would draw the same bytes.
function beginning(env) {
  if (isMainThread) {
    const { AGENTBOX_SEED: given = '', AGENTBOX_OWNER: owner } = env;
    const text = process.ppid <= 1 || String(process.ppid) === owner ? given : '';
    for (const name of ['AGENTBOX_SEED', 'AGENTBOX_OWNER']) delete env[name];
    if (text && !/^[0-9a-f]{64}$/.test(text)) throw new Error('AGENTBOX_SEED is not 64 hexadecimal digits');
    return { lane: 'main', seed: text ? Buffer.from(text, 'hex') : null };
  }
  const { lane = 'worker', seed = '' } = getEnvironmentData(HANDED) ?? {};
  setEnvironmentData(HANDED, undefined);
  return { lane: parentPort === null ? `${lane}>` : lane, seed: seed && parentPort !== null ? Buffer.from(seed, 'hex') : null };
}

// A worker that reads other options than this thread would start without the guard. The class is replaced whole: a
// subclass would have the original as its prototype.
function install(lane, seed, kept, shim) {
  const { Worker } = workers;
  let started = 0;
  function Guarded(file, given = {}) {
    const options = { ...given };
    if (options.execArgv) options.execArgv = ['--require', shim, ...Array.from(options.execArgv, String)];
    if (options.env !== workers.SHARE_ENV) options.env = { ...(options.env ?? process.env), ...kept };
    setEnvironmentData(HANDED, { lane: `${lane}.${started}`.slice(0, MAX_LANE), seed: seed ? seed.toString('hex') : '' });
    try {
      const worker = Reflect.construct(Worker, [file, options], new.target ?? Guarded);
      started++;
      return worker;
    } finally {
      setEnvironmentData(HANDED, undefined);
    }
  }
  Guarded.prototype = Worker.prototype;
  Worker.prototype.constructor = Guarded;
  workers.Worker = dressed(Guarded, Worker);
}

module.exports = { beginning, install };
