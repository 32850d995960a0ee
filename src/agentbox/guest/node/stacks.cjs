// SPDX-License-Identifier: MIT
// Stacks of errors that do not tell whether a function was called by a timer or in its turn by a replay: they end where the
// program was called, and leave the guard out. Otherwise they are what the runtime writes.
'use strict';

const GUARD = `${__dirname}/`;
const TURNS = `${GUARD}turns.cjs`;
const { toString } = Error.prototype;

// What stands before the frames: the runtime's own errors show their code.
function head(error) {
  try {
    for (let at = error; at; at = Object.getPrototypeOf(at)) {
      if (Object.getOwnPropertySymbols(at).some((one) => one.description === 'kIsNodeError')) {
        return `${error.name} [${error.code}]: ${error.message}`;
      }
    }
    return toString.call(error);
  } catch {
    return '<error>';
  }
}

function install() {
  // Stacks that are mapped to sources are made elsewhere.
  if (process.execArgv.concat(process.env.NODE_OPTIONS ?? '').some((word) => word.includes('enable-source-maps'))) return;
  const stack = (error, frames) => {
    const end = frames.findIndex((frame) => frame.getFileName() === TURNS);
    const shown = (end < 0 ? frames : frames.slice(0, end)).filter((frame) => !frame.getFileName()?.startsWith(GUARD));
    return [head(error), ...shown.map((frame) => `    at ${frame}`)].join('\n');
  };
  Object.defineProperty(Error, 'prepareStackTrace', { value: stack, writable: true, configurable: true });
}

module.exports = { install };
