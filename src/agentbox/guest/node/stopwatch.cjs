// SPDX-License-Identifier: MIT
// console.time and what belongs to it, by the clock of a recorded run: the runtime's own looks below what is replaced.
'use strict';

const { dressed } = require('./dressing.cjs');

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const two = (number) => String(number).padStart(2, '0');

// A time span as the runtime writes it.
function written(ms) {
  if (ms < SECOND) return `${Number(ms.toFixed(3))}ms`;
  if (ms < MINUTE) return `${(ms / SECOND).toFixed(3)}s`;
  const hours = Math.floor(ms / HOUR);
  const minutes = Math.floor((ms % HOUR) / MINUTE);
  const [seconds, rest] = ((ms % MINUTE) / SECOND).toFixed(3).split('.');
  return hours ? `${hours}:${two(minutes)}:${two(seconds)}.${rest} (h:mm:ss.mmm)` : `${minutes}:${two(seconds)}.${rest} (m:ss.mmm)`;
}

// `instant` gives milliseconds.
function install(instant) {
  const begun = new Map();
  const { time, timeEnd, timeLog } = console;
  const warn = (text) => process.emitWarning(text);
  const shows = (name, label, rest) => {
    if (!begun.has(label)) {
      warn(`No such label '${label}' for console.${name}()`);
      return;
    }
    console.log('%s: %s', label, written(instant() - begun.get(label)), ...rest);
    if (name === 'timeEnd') begun.delete(label);
  };
  console.time = dressed((given = 'default') => {
    const label = `${given}`;
    if (begun.has(label)) warn(`Label '${label}' already exists for console.time()`);
    else begun.set(label, instant());
  }, time);
  console.timeEnd = dressed((label = 'default') => shows('timeEnd', `${label}`, []), timeEnd);
  console.timeLog = dressed((label = 'default', ...rest) => shows('timeLog', `${label}`, rest), timeLog);
}

module.exports = { install };
