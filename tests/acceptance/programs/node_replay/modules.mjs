// SPDX-License-Identifier: MIT
// Modules that import one another, now and later; an end that is no success.
import { createRequire } from 'node:module';

import Shape, { id, loaded } from './shape.mjs';

const { readFileSync } = createRequire(import.meta.url)('node:fs');
console.log(id, loaded, new Shape().area, readFileSync(new URL('data/notes.txt', import.meta.url), 'utf8'));
const again = await import('./shape.mjs');
console.log(again.id === id, new again.default().area);
const { default: data } = await import(`data:text/javascript,export default ${Date.now()}`);
console.log(data);
const failing = () => { throw new TypeError(`it fails at ${new Date().getTime()}`); };
process.exitCode = 3;
process.on('uncaughtException', (error) => {
  console.error(error.stack);
  process.exit(7);
});
setInterval(() => {}, 1000);
setTimeout(failing, 1);
