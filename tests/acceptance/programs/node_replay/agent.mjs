// SPDX-License-Identifier: MIT
// All functions for agents, what they refuse, and what goes wrong with them. The address of a server comes as argument.
import { readFileSync } from 'node:fs';

const [server] = process.argv.slice(2);
const { get, now, random, readText, run, writeText } = globalThis.agentbox;
const show = async (act) => {
  try {
    console.log(await act());
  } catch (error) {
    console.log(error.name, error.code, error.message, error instanceof Error);
  }
};
console.log(Object.keys(globalThis.agentbox), Number.isInteger(now()), Number.isInteger(random()), now(), random() < 2 ** 48);
await show(() => readText('data/notes.txt'));
await show(() => writeText('out/deep/er/file.txt', 'héllo'));
await show(() => readText('out/deep/er/file.txt'));
console.log(readFileSync('out/deep/er/file.txt', 'utf8'));
await show(() => readText('/etc/shadow'));
await show(() => readText('data/none'));
await show(() => readText('data/\ud800'));
await show(() => readText(5));
await show(() => writeText('data/x', 'no'));
await show(() => run(['sh', '-c', 'echo $$; cat; echo problem >&2; exit 3'], { stdin: 'given' }));
await show(() => run(['sleep', '9'], { timeoutSeconds: 0.1 }));
await show(() => run(['ls']));
await show(() => run(['no-such-program']));
await show(() => get(`${server}/page`, { Authorization: 'Bearer hidden-3456' }));
await show(() => get(`${server}/redirect`));
await show(() => get(`${server}/away`));
await show(() => get(`${server}/missing?token=hidden-7890`));
await show(() => get(`${server}/page`, {}, { method: 'POST', body: 'sent' }));
await show(() => get(`${server}/slow`, {}, { timeoutSeconds: 0.2 }));
await show(() => get('file:///etc/passwd'));
await show(() => get('http://elsewhere.test/'));
const waiting = get(`${server}/page?while`);
try {
  readFileSync('/etc/shadow');
} catch (error) {
  console.log('judged all the while', error.message);
}
console.log((await waiting).status);
console.log((await Promise.all([1, 2, 3].map((number) => get(`${server}/page?${number}`)))).map(({ body }) => body));
const large = await get(`${server}/large`);
console.log(large.body.length, large.sha256);
