// SPDX-License-Identifier: MIT
// What the loader's thread asks before it reads a module, in versions of Node that have such a thread.
'use strict';

const handed = Symbol.for('agentbox.loading');
const ask = process[handed];
delete process[handed];
if (typeof ask !== 'function') throw new Error('agentbox: the thread that loads modules has no guard');

exports.load = async function load(url, context, next) {
  ask(url, context);
  return next(url, context);
};
