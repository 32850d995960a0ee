// SPDX-License-Identifier: MIT
// Modules that are imported: the loader reads them below `fs`. Versions of Node that run hooks in the same thread ask
// here; those before ask a thread of their own, whose guard leaves its question for hooks.cjs.
'use strict';

const Module = require('node:module');
const { join } = require('node:path');
const { fileURLToPath, pathToFileURL } = require('node:url');
const { isMainThread, parentPort } = require('node:worker_threads');

const HANDED = Symbol.for('agentbox.loading');
// Built-in modules that reach files or code without any door of the guard.
const BELOW = /^(?:node:)?(?:wasi|sqlite|trace_events|repl)(?:\/|$)/;

// Throws when a module may not be loaded. What `require` reads goes through `fs`, which asks by itself.
function questionOf(effects) {
  const lane = `${effects.channel.lane.replace(/>$/, '')}>`;
  return (url, { conditions = [], format } = {}) => {
    if (effects.strict && BELOW.test(url)) effects.deny('introspection', url);
    if (!url.startsWith('file:')) return;
    const isRequired = conditions.includes('require') && format !== 'module';
    // A graph of modules is read in the order in which its files happen to be there: no lane of the program.
    if (!isRequired) effects.read(fileURLToPath(url), format !== 'commonjs', { lane });
  };
}

function install(effects) {
  const ask = questionOf(effects);
  if (!isMainThread && parentPort === null) {
    // The thread of the loader: hooks.cjs takes it before any other code runs here.
    Object.defineProperty(process, HANDED, { value: ask, configurable: true });
    return;
  }
  if (!effects.strict && !effects.answers.hasFineReads) return;
  if (Module.registerHooks) {
    Module.registerHooks({
      load(url, context, next) {
        ask(url, context);
        return next(url, context);
      },
    });
  } else if (Module.register) {
    Module.register(pathToFileURL(join(__dirname, 'hooks.cjs')));
  }
}

module.exports = { BELOW, install };
