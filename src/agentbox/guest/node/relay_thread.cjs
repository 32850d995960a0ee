// SPDX-License-Identifier: MIT
// A thread beside the program's: what programs write that were given this process's own output comes here, is passed on,
// and is told to relay.cjs when such a program has ended. It has no guard and runs no code of the program.
'use strict';

const { writeSync } = require('node:fs');
const { createServer } = require('node:net');
const { workerData } = require('node:worker_threads');

const { most, path, port, state, token } = workerData;

function write(fd, data) {
  for (let at = 0; at < data.length;) {
    try {
      at += writeSync(fd, data, at);
    } catch (error) {
      if (error.code !== 'EAGAIN') return;
      Atomics.wait(state, 1, 0, 1);
    }
  }
}

// How many bytes at the end may be the begin of the token.
function suspicious(data) {
  for (let count = Math.min(token.length - 1, data.length); count; count--) {
    if (data.subarray(data.length - count).equals(token.subarray(0, count))) return count;
  }
  return 0;
}

createServer((socket) => {
  let target = null;
  let rest = Buffer.alloc(0);
  let kept = [];
  let size = 0;
  const pass = (data) => {
    write(target, data);
    if (!kept) return;
    size += data.length;
    // More than anybody keeps takes no room here.
    kept = size > most ? [] : [...kept, data];
  };
  socket.on('error', () => {});
  socket.on('data', (data) => {
    rest = Buffer.concat([rest, data]);
    if (target === null) {
      // The first byte says whose place it takes.
      target = rest[0];
      rest = rest.subarray(1);
    }
    const end = kept ? rest.indexOf(token) : -1;
    if (end >= 0) {
      pass(rest.subarray(0, end));
      port.postMessage(size > most ? null : Buffer.concat(kept));
      kept = null;
      rest = rest.subarray(end + token.length);
      Atomics.add(state, 0, 1);
      Atomics.notify(state, 0);
    }
    const held = kept ? suspicious(rest) : 0;
    pass(rest.subarray(0, rest.length - held));
    rest = rest.subarray(rest.length - held);
  });
}).listen(path, () => {
  Atomics.add(state, 0, 1);
  Atomics.notify(state, 0);
});
