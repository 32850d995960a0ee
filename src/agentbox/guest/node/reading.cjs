// SPDX-License-Identifier: MIT
// Tables of a policy that comes as text, read where the guard runs. The slow way; a runner gives the tables itself.
'use strict';

const { accessSync, constants, readFileSync, statSync } = require('node:fs');
const { homedir } = require('node:os');

const { parse } = require('./parser.cjs');
const { native, resolve } = require('./resolve.cjs');
const { tablesOf } = require('./tables.cjs');

function findProgram(name) {
  const directories = (process.env.PATH ?? '/bin:/usr/bin').split(':').filter((place) => place[0] === '/');
  for (const candidate of name.includes('/') ? [name] : directories.map((place) => `${place}/${name}`)) {
    try {
      accessSync(candidate, constants.X_OK);
      if (statSync(candidate).isFile()) return resolve(candidate).full;
    } catch {
      // The next one.
    }
  }
  return null;
}

// The tables of a policy whose relative paths begin at `root`. Throws PolicySyntaxError.
function tablesOfText(text, path, root) {
  return tablesOf(parse(text, {
    root,
    path,
    home: homedir(),
    resolve: (found) => resolve(found).full,
    findProgram,
    readInclude: (found) => readFileSync(native(found)),
  }));
}

module.exports = { tablesOfText };
