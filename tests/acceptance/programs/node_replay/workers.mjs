// SPDX-License-Identifier: MIT
// Threads that work at the same time and speak as they get ready.
import crypto from 'node:crypto';
import fs from 'node:fs';
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads';

if (isMainThread) {
  const results = await Promise.all([0, 1, 2].map((number) => new Promise((done, failed) => {
    const worker = new Worker(new URL(import.meta.url), { workerData: number });
    worker.on('message', (message) => {
      console.log(number, message);
      if (message.id) done(message.id);
    });
    worker.on('error', failed);
    worker.postMessage(`go ${number}`);
  })));
  console.log(results, new Set(results).size, Date.now(), crypto.randomUUID());
} else {
  parentPort.on('message', (word) => {
    parentPort.postMessage({ word, at: Date.now(), random: Math.random(), text: fs.readFileSync('data/notes.txt', 'utf8') });
    parentPort.postMessage({ id: crypto.randomUUID(), after: performance.now() });
    parentPort.close();
  });
  fs.writeFileSync(`out/worker-${workerData}`, String(Math.random()));
}
