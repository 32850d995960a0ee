// SPDX-License-Identifier: MIT
// Timers of all kinds against each other and against other things that end later.
import crypto from 'node:crypto';
import { EventEmitter, once } from 'node:events';
import fs from 'node:fs';
import { scheduler, setImmediate as soon, setInterval as every, setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';

const order = [];
const racers = [1, 2, 3].map(async (number) => {
  for (let step = 0; step < 4; step++) {
    await sleep(Math.random() * 3);
    order.push(number);
  }
});
await Promise.all(racers);
console.log(order.join(''));
await Promise.all([
  sleep(2).then(() => console.log('promise', Date.now())),
  new Promise((done) => setTimeout((word) => done(console.log('callback', word)), 2, 'given')),
  new Promise((done) => setImmediate(() => done(console.log('immediate')))),
  new Promise((done) => process.nextTick(() => done(console.log('tick')))),
  soon().then(() => console.log('soon')),
  promisify(setTimeout)(1).then(() => console.log('promisified')),
  promisify(crypto.pbkdf2)('a', 'b', 3000, 16, 'sha256').then((key) => console.log('derived', key.toString('hex'))),
  crypto.subtle?.digest('SHA-256', Buffer.from('x')).then((digest) => console.log('digest', digest.byteLength)),
  new Promise((done) => fs.readFile('data/notes.txt', 'utf8', (_, text) => done(console.log('file', text.trim())))),
]);
let ticks = 0;
await new Promise((done) => {
  const cancelled = setTimeout(() => console.log('never'), 6);
  const ticking = setInterval(() => {
    console.log('interval', ++ticks, performance.now());
    clearTimeout(cancelled);
    if (ticks < 3) return;
    clearInterval(ticking);
    done();
  }, 1);
});
for await (const value of every(1, 'again')) {
  console.log(value);
  if (++ticks > 5) break;
}
const emitter = new EventEmitter();
setTimeout(() => emitter.emit('ready', Math.random()), 1);
console.log(await once(emitter, 'ready'));
const { signal } = Object.assign(new AbortController(), {});
await sleep(1, null, { signal });
await scheduler?.wait?.(1);
const aborted = new AbortController();
setTimeout(() => aborted.abort(), 1);
await sleep(10_000, null, { signal: aborted.signal }).catch((error) => console.log(error.name));
