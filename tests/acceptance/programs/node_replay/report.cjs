// SPDX-License-Identifier: MIT
// A report that says when it was made, how long it took and what it is called.
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const began = Date.now();
console.time('report');
performance.mark('begin');
const stamp = process.hrtime.bigint();
const started = new Date();
const names = fs.readdirSync('data').filter((name) => name.endsWith('.txt'));
const rows = names.map((name) => {
  const text = fs.readFileSync(path.join('data', name), 'utf8');
  return { name, words: text.split(/\s+/).filter(Boolean).length, id: crypto.randomUUID() };
});
const sample = rows.map((row) => ({ row, key: Math.random() })).sort((a, b) => a.key - b.key).map(({ row }) => row.name);
const report = {
  made: started.toISOString(),
  local: started.toLocaleString('en-GB', { timeZone: 'UTC' }),
  shown: new Intl.DateTimeFormat('en', { dateStyle: 'full', timeStyle: 'long', timeZone: 'UTC' }).format(),
  text: Date(),
  rows,
  sample,
  token: crypto.randomBytes(12).toString('base64url'),
  dice: Array.from({ length: 6 }, () => crypto.randomInt(1, 7)),
  noise: Array.from(crypto.webcrypto.getRandomValues(new Uint8Array(4))),
  key: crypto.generateKeySync('hmac', { length: 128 }).export().toString('hex'),
};
const directory = fs.mkdtempSync('out/report-');
fs.writeFileSync(path.join(directory, 'report.json'), JSON.stringify(report, null, 2));
while (Date.now() - began < 5);
console.log(JSON.stringify(report));
console.log(directory, performance.measure('all', 'begin').duration, process.hrtime.bigint() - stamp, process.hrtime(), process.uptime());
console.log(new Date() instanceof Date, Date.name, Date.length, new (class Day extends Date {})() instanceof Date, performance.timeOrigin);
console.timeEnd('report');
process.on('exit', (code) => console.log('ended', code, Date.now(), Math.random()));
