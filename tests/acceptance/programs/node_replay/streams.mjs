// SPDX-License-Identifier: MIT
// Files by streams, handles, callbacks and promises, several at a time.
import fs from 'node:fs';
import { appendFile, open, readFile, readdir, rename, rm, stat, writeFile } from 'node:fs/promises';
import readline from 'node:readline';
import { Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import zlib from 'node:zlib';

for (let number = 0; number < 12; number++) await writeFile(`out/part-${number}.txt`, `line ${number}\n`.repeat(number * 700));
const took = await Promise.all(Array.from({ length: 12 }, async (_, number) => {
  const begin = performance.now();
  const text = await readFile(`out/part-${number}.txt`, 'utf8');
  console.log('read', number, text.length, Math.random());
  return performance.now() - begin;
}));
console.log(took);
const upper = new Transform({ transform(piece, _, done) { done(null, String(piece).toUpperCase()); } });
await pipeline(fs.createReadStream('data/notes.txt'), upper, zlib.createGzip(), fs.createWriteStream('out/notes.gz'));
console.log(String(await promisify(zlib.gunzip)(await readFile('out/notes.gz'))));
for await (const line of readline.createInterface({ input: fs.createReadStream('out/part-1.txt') })) if (Math.random() < 0.01) console.log(line, Date.now());
const handle = await open('out/handle', 'w+');
await handle.write('abc');
await handle.writeFile('def');
console.log((await handle.stat()).size);
await handle.close();
await Promise.all([appendFile('out/log', 'one\n'), new Promise((done) => fs.appendFile('out/other', 'two\n', done))]);
await rename('out/other', 'out/renamed');
await rm('out/part-0.txt');
console.log((await readdir('out')).length, (await stat('out/log')).size, fs.existsSync('out/other'));
await new Promise((done) => fs.readFile('data/none', (error) => {
  console.log(error.code, error.message);
  done();
}));
try {
  fs.readFileSync('/etc/shadow');
} catch (error) {
  console.log(error.name, error.message);
}
