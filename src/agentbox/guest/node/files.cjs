// SPDX-License-Identifier: MIT
// The doors of `fs`: synchronous, callback and promise functions, and through them streams and handles.
'use strict';

const fs = require('node:fs');

const { Caps } = require('./caps.cjs');
const { dressed } = require('./dressing.cjs');
const { identityOf, named, native, plainPath, resolve, textOf } = require('./resolve.cjs');

const { O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND } = fs.constants;
const { readdirSync, readlinkSync } = fs;
const WRITING = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND;
const MAX_COPIED = 100_000;

// What each function does to its path arguments; `Sync` and promise forms do the same.
const KINDS = {
  readFile: 'read', openAsBlob: 'read', watch: 'look', watchFile: 'look',
  readdir: 'list', opendir: 'list',
  stat: 'see', lstat: 'see', access: 'see', exists: 'see', statfs: 'see', realpath: 'reveal', readlink: 'reveal',
  writeFile: 'write', appendFile: 'write', truncate: 'truncate',
  mkdir: 'mkdir', mkdtemp: 'mkdtemp', mkdtempDisposable: 'mkdtemp', rm: 'remove', rmdir: 'remove', unlink: 'remove',
  chmod: 'fs.chmod', lchmod: 'fs.chmod', chown: 'fs.chown', lchown: 'fs.chown', utimes: 'fs.utime', lutimes: 'fs.utime',
  fchmod: 'of fs.chmod', fchown: 'of fs.chown', futimes: 'of fs.utime',
  open: 'open', rename: 'rename', link: 'link', symlink: 'symlink', copyFile: 'copy', cp: 'copy all',
};
const TWO_PATHS = new Set(['rename', 'link', 'symlink', 'copy', 'copy all']);
const OF_LINKS = /^l/;
// Options that decide what is asked: read once, so that no getter says one thing to the guard and another to the call.
const OPTIONS = {
  readFile: ['encoding', 'flag', 'signal'],
  writeFile: ['encoding', 'flag', 'mode', 'signal', 'flush'],
  appendFile: ['encoding', 'flag', 'mode', 'signal', 'flush'],
  mkdir: ['mode', 'recursive'],
  rm: ['force', 'maxRetries', 'recursive', 'retryDelay'],
  rmdir: ['maxRetries', 'recursive', 'retryDelay'],
  cp: ['dereference', 'errorOnExist', 'filter', 'force', 'mode', 'preserveTimestamps', 'recursive', 'verbatimSymlinks'],
};

function writes(flags) {
  if (typeof flags === 'number') return (flags & WRITING) !== 0;
  return typeof flags === 'string' && /[wa+]/.test(flags);
}

const truncates = (flags) => (typeof flags === 'number' ? (flags & O_TRUNC) !== 0 : /w/.test(flags));
const readsToo = (flags) => (typeof flags === 'number' ? (flags & O_RDWR) !== 0 : /\+/.test(flags));

function absence(name, path) {
  const syscall = name === 'exists' ? 'access' : name;
  return Object.assign(new Error(`ENOENT: no such file or directory, ${syscall} '${path}'`),
    { errno: -2, code: 'ENOENT', syscall, path });
}

function install(effects) {
  const caps = new Caps(effects);
  const isHandle = (given) => caps.isHandle(given);
  // Paths that the running synchronous function may use, and whether to write: what it calls in turn was asked about.
  let approved = new Map();

  const write = (text, options) => {
    const target = effects.mayWrite(text, { follow: true });
    if (!target) return;
    if (options?.reads && target.found?.isFile() && effects.isCounted(target.full, identityOf(target.found))) effects.read(text);
    effects.happens('fs.open_write', { path: named(target.full) });
  };

  // The directories that are made, the outer ones first; none where there is something already, of which only a replay
  // must know.
  function madeBy(text, isRecursive) {
    const { full, found } = effects.resolve(text);
    if (found) return effects.tape && effects.answers.write(full, null, null, false).allowed ? [text] : [];
    if (!isRecursive) return [text];
    const made = [];
    for (let at = full; at && !effects.resolve(at).found; at = at.slice(0, at.lastIndexOf('/'))) made.unshift(at);
    return made;
  }

  // What a symbolic link will point to, from where it lies.
  function pointsTo(link, target) {
    if (!effects.strict || target === null) return;
    effects.read(target[0] === '/' ? target : `${link.slice(0, link.lastIndexOf('/'))}/${target}`, false);
  }

  // Some versions copy a directory below JavaScript, so all of it is asked about before.
  function copiesAll(from, to, options, depth = { left: MAX_COPIED }) {
    if (--depth.left < 0) throw new Error(`agentbox: more than ${MAX_COPIED} files in one copy`);
    const { full, found } = resolve(from, Boolean(options?.dereference) || depth.left === MAX_COPIED - 1);
    effects.read(from, !found?.isDirectory());
    if (found?.isDirectory() && !options?.recursive) return;
    const target = effects.mayWrite(to, { follow: true });
    if (!target) return;
    approved.set(from, false).set(to, true);
    if (found?.isSymbolicLink()) pointsTo(target.full, textOf(readlinkSync(native(full), { encoding: 'buffer' })));
    effects.happens(found?.isDirectory() ? 'fs.mkdir' : 'fs.open_write', { path: named(target.full) });
    if (!found?.isDirectory()) {
      caps.copies(target, found);
      return;
    }
    for (const entry of readdirSync(native(full), { encoding: 'buffer' })) {
      copiesAll(`${from}/${textOf(entry)}`, `${to}/${textOf(entry)}`, options, depth);
    }
  }

  // Throw unless a call may happen; `texts` are those of its paths.
  function ask(name, kind, args, texts) {
    const [text, second] = texts;
    switch (kind) {
      case 'see': return undefined;
      case 'read': return writes(args[1]?.flag) ? write(text, { reads: true }) : effects.read(text);
      case 'look': return effects.read(text, false);
      case 'list': return effects.strict ? effects.read(text, false) : undefined;
      case 'reveal': return effects.sees(text, name === 'realpath') ? undefined : effects.deny('read', text);
      case 'write': return write(text);
      case 'truncate':
        write(text);
        return caps.cuts(text, args[1]);
      case 'mkdir': {
        if (text === null) return undefined;
        for (const made of madeBy(text.replace(/(?<=.)\/+$/, ''), args[1]?.recursive)) effects.change('fs.mkdir', made);
        return undefined;
      }
      case 'mkdtemp': return void effects.change('fs.mkdir', text === null ? null : `${text}XXXXXX`);
      case 'remove': return void effects.change('fs.remove', text, { whole: args[1]?.recursive === true });
      case 'open': return writes(args[1]) ? write(text, { reads: readsToo(args[1]) && !truncates(args[1]) }) : effects.read(text);
      case 'rename':
      case 'link': {
        const whole = kind === 'rename';
        const from = effects.mayWrite(text, { whole });
        const to = effects.mayWrite(second, { whole });
        if (from && to) {
          caps.moves(to, from.found);
          effects.happens(`fs.${kind}`, { path: named(from.full), to: named(to.full) });
        }
        return undefined;
      }
      case 'symlink': {
        const to = effects.mayWrite(second);
        if (!to) return undefined;
        pointsTo(to.full, text);
        return effects.happens('fs.symlink', { path: named(to.full), target: text === null ? null : named(text) });
      }
      case 'copy': {
        effects.read(text);
        write(second);
        if (text !== null && second !== null) caps.copies(effects.resolve(second), effects.resolve(text).found);
        return undefined;
      }
      default: return void effects.change(kind, text, { follow: !OF_LINKS.test(name) });
    }
  }

  // What an open file's own functions change, by the file that it is.
  function askDescriptor(kind, descriptor) {
    if (typeof descriptor !== 'number') return;
    let path;
    try {
      path = textOf(readlinkSync(`/proc/self/fd/${descriptor}`, { encoding: 'buffer' }));
    } catch {
      return;
    }
    if (path?.[0] === '/' && !path.endsWith(' (deleted)')) effects.change(kind, path, { follow: true });
  }

  function normal(name, kind, given) {
    const args = [...given];
    for (let at = 0; at < (TWO_PATHS.has(kind) ? 2 : 1); at++) args[at] = plainPath(args[at], isHandle);
    const at = name === 'writeFile' || name === 'appendFile' || name === 'cp' ? 2 : 1;
    const options = args[at];
    if (OPTIONS[name] && options !== null && typeof options === 'object') {
      args[at] = Object.fromEntries(OPTIONS[name].filter((key) => key in options).map((key) => [key, options[key]]));
    }
    return args;
  }

  // Ask, and call with what the call may use approved.
  function guardedCall(name, kind, self, args, call) {
    const before = approved;
    const texts = args.slice(0, TWO_PATHS.has(kind) ? 2 : 1).map(textOf);
    const needsWriting = !['read', 'look', 'list', 'see', 'reveal'].includes(kind) && !(kind === 'open' && !writes(args[1]));
    const was = TWO_PATHS.has(kind) ? undefined : before.get(texts[0]);
    if (was === true || (was === false && !needsWriting)) return call();
    try {
      approved = new Map();
      // With a filter every version asks for each file from JavaScript, and some are left out.
      if (kind === 'copy all' && typeof args[2]?.filter === 'function') return call();
      if (kind === 'copy all') copiesAll(texts[0], texts[1], args[2]);
      else if (kind.startsWith('of ')) askDescriptor(kind.slice(3), args[0]);
      else ask(name, kind, args, texts);
      for (const text of texts) if (text !== null) approved.set(text, needsWriting);
      return call();
    } finally {
      approved = before;
    }
  }

  function guarded(name, kind, real) {
    return dressed(function (...given) {
      const args = normal(name, kind, given);
      if (kind === 'see' && !effects.sees(textOf(args[0]), name !== 'lstat')) {
        if (name === 'exists') return false;
        if (args[1]?.throwIfNoEntry === false) return undefined;
        throw absence(name, args[0]);
      }
      return guardedCall(name, kind, this, args, () => caps.calls(`${name}Sync`, real, this, args));
    }, real);
  }

  // A promise function rejects, and a callback function calls back, where the program expects the error.
  function guardedPromise(name, kind, real) {
    return dressed(async function (...given) {
      const args = normal(name, kind, given);
      if (kind === 'see' && !effects.sees(textOf(args[0]), name !== 'lstat')) throw absence(name, args[0]);
      // The parts of a copy are asked about one by one.
      if (name !== 'cp') guardedCall(name, kind, this, args, () => undefined);
      return caps.callsPromise(name, real, this, args);
    }, real);
  }

  function guardedCallback(name, kind, real) {
    return dressed(function (...given) {
      const args = normal(name, kind, given);
      const callback = args[args.length - 1];
      if (typeof callback !== 'function') return Reflect.apply(real, this, args);
      if (kind === 'see' && !effects.sees(textOf(args[0]), name !== 'lstat')) {
        process.nextTick(callback, name === 'exists' ? false : absence(name, args[0]));
        return undefined;
      }
      try {
        if (name === 'cp') return Reflect.apply(real, this, args);
        return guardedCall(name, kind, this, args, () => caps.callsBack(name, real, this, args));
      } catch (error) {
        if (error?.name !== 'AgentboxPolicyError') throw error;
        process.nextTick(callback, error);
        return undefined;
      }
    }, real);
  }

  for (const [name, kind] of Object.entries(KINDS)) {
    if (kind === 'see' && !effects.strict) continue;
    const sync = `${name}Sync`;
    if (fs[sync]) {
      const real = fs[sync];
      fs[sync] = guarded(name, kind, real);
      if (real.native) fs[sync].native = guarded(name, kind, real.native);
    }
    if (fs.promises[name]) fs.promises[name] = guardedPromise(name, kind, fs.promises[name]);
    if (!fs[name]) continue;
    const real = fs[name];
    fs[name] = name === 'openAsBlob' ? guardedPromise(name, kind, real) : guardedCallback(name, kind, real);
    if (real.native) fs[name].native = guardedCallback(name, kind, real.native);
  }
  caps.install(askDescriptor, dressed);
}

module.exports = { install };
