// SPDX-License-Identifier: MIT
// The small world in which the vectors of spec/policy are read: links, programs and files that stand in a table.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { parse } = require('../../src/agentbox/guest/node/parser.cjs');
const MAX_LINKS = 40;

export class World {
  constructor({ root, home, links = {}, programs = {}, libexec = {}, files = null }) {
    Object.assign(this, { root, home, links, programs, libexec, files });
  }

  // An absolute path without links, `.` and `..`; what does not exist stays as it is.
  resolve(path) {
    const waiting = path.split('/').reverse();
    let parts = [];
    let followed = 0;
    while (waiting.length) {
      const part = waiting.pop();
      if (part === '..') {
        parts.pop();
      } else if (part !== '' && part !== '.') {
        const target = this.links[`/${[...parts, part].join('/')}`];
        if (target === undefined) {
          parts.push(part);
          continue;
        }
        if (++followed > MAX_LINKS) throw new Error('too many links');
        if (target[0] === '/') parts = [];
        waiting.push(...target.split('/').reverse());
      }
    }
    return `/${parts.join('/')}`;
  }

  findProgram(name) {
    if (!name.includes('/')) return Object.hasOwn(this.programs, name) ? this.resolve(this.programs[name]) : null;
    const resolved = this.resolve(name);
    return Object.values(this.programs).some((program) => this.resolve(program) === resolved) ? resolved : null;
  }

  // What would run for an argv[0] that is looked up as execvp does.
  programOf(argv0) {
    return this.findProgram(!argv0.includes('/') || argv0[0] === '/' ? argv0 : `${this.root}/${argv0}`);
  }

  parse(text) {
    return parse(text, {
      root: this.root,
      home: this.home,
      resolve: (path) => this.resolve(path),
      findProgram: (name) => this.findProgram(name),
      libexecOf: (program) => this.libexec[program] ?? [],
      readInclude: this.files && ((path) => {
        if (!Object.hasOwn(this.files, path)) throw Object.assign(new Error('there is no such file'), { code: 'ENOENT' });
        return this.files[path];
      }),
    });
  }

  path(given) {
    return this.resolve(given[0] === '/' ? given : `${this.root}/${given}`);
  }
}
