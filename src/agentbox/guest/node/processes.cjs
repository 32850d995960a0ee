// SPDX-License-Identifier: MIT
// The doors to other programs: child processes.
'use strict';

const child = require('node:child_process');
const fs = require('node:fs');

const children = require('./children.cjs');
const { dressed } = require('./dressing.cjs');
const { named, plainPath, textOf } = require('./resolve.cjs');
const waiting = require('./waiting.cjs');

const { accessSync, constants, readlinkSync } = fs;
const PYTHON_WITHOUT_GUARD = /^-[a-bd-ln-zA-VYZ]*[ISE]/;
// Options of Node that run code before the guard, or beside it, or write files of the runtime's own.
const NODE_AROUND_GUARD = new RegExp('^--(?:(?:experimental-)?loader|snapshot-blob|build-snapshot|experimental-sea-config|build-sea|inspect'
  + '|debug-port|cpu-prof|heap-prof|prof|perf|diagnostic-dir|trace-event|report|redirect-warnings|heapsnapshot|tls-keylog|log'
  + '|openssl-|test-reporter-destination|no-addons=|allow-|no-permission|no-experimental-permission|experimental-policy)');

// Variables that load code into what is started, or make its runtime write files.
const LOADING = ['LD_PRELOAD', 'LD_AUDIT', 'LD_LIBRARY_PATH', 'OPENSSL_CONF', 'OPENSSL_MODULES', 'NODE_V8_COVERAGE', 'NODE_REDIRECT_WARNINGS'];
// Options of Node whose value is a word of its own.
const WITH_VALUE = /^(?:-[epr]|-pe|-C|--eval|--print|--require|--import|--conditions|--env-file|--input-type|--title)$/;

// The options before a script's name.
function optionsOf(words, isPython) {
  const found = [];
  for (let at = 0; at < words.length && words[at][0] === '-' && words[at] !== '--'; at++) {
    found.push(words[at]);
    if (isPython ? /^-[a-zA-Z]*[cm]/.test(words[at]) : words[at] === '-') break;
    if (isPython ? /^-[WX]$/.test(words[at]) : WITH_VALUE.test(words[at])) at++;
  }
  return found;
}

// Whether a variable still loads the guard, and before anything else.
function keeps(key, wanted, value) {
  if (key === 'PYTHONPATH') return value.split(':')[0] === wanted;
  if (key !== 'NODE_OPTIONS') return value === wanted;
  return (value === wanted || value.startsWith(`${wanted} `)) && !value.slice(wanted.length).split(/[\s"]+/).some(isAround);
}

const isAround = (option) => NODE_AROUND_GUARD.test(option.replaceAll('_', '-'));

function install(effects, kept) {
  const { answers } = effects;
  const parent = readlinkSync('/proc/self/exe');
  const initial = { ...process.env };

  function programOf(file, env, directory) {
    const path = env?.PATH ?? process.env.PATH ?? '/bin:/usr/bin';
    const base = directory ?? process.cwd();
    const places = file.includes('/') ? [file] : path.split(':').map((place) => `${place || '.'}/${file}`);
    for (const place of places) {
      const candidate = place[0] === '/' ? place : `${base}/${place}`;
      try {
        accessSync(candidate, constants.X_OK);
        return effects.resolve(candidate).full;
      } catch {
        // The next one.
      }
    }
    return null;
  }

  // Throw unless a program may start; gives the host's answer, undefined when there is no such program.
  function starts(file, argv, env, directory) {
    const program = programOf(String(file), env, directory);
    if (program === null) return undefined;
    const words = argv.map(String);
    const shown = words.slice(0, 64).map((word) => word.slice(0, 1000));
    const started = { argv: shown, program: named(program) };
    if (!answers.start(words, program, parent).allowed) {
      effects.deny('exec', shown.join(' '), started);
      return undefined;
    }
    const reason = effects.strict && effects.enforce ? unguarded(program, words, env) : '';
    if (reason) effects.deny('exec', `${shown.join(' ')} (${reason})`, started);
    return effects.happens('proc.spawn', started);
  }

  function unguarded(program, words, env) {
    const name = program.slice(program.lastIndexOf('/') + 1);
    const isPython = /^(?:python|pypy)/.test(name);
    if (!isPython && !/^node/.test(name)) return '';
    const around = optionsOf(words.slice(1), isPython).find(isPython ? (word) => PYTHON_WITHOUT_GUARD.test(word) : isAround);
    if (around !== undefined) return `${around} would start it without the guard`;
    const given = env ?? process.env;
    const value = (key) => String(given[key] ?? '');
    const lacks = Object.keys(kept).find((key) => !(isPython && key === 'NODE_OPTIONS')
      && !(!isPython && key === 'PYTHONPATH') && !keeps(key, kept[key], value(key)));
    if (lacks) return `its environment lacks ${lacks} as the guard needs it`;
    const adds = LOADING.find((key) => value(key) && value(key) !== initial[key]);
    return adds ? `its environment has ${adds}` : '';
  }

  // As child_process reads its arguments: (file, [args], [options]).
  function parts(file, args, options) {
    const list = Array.isArray(args) ? args.map(String) : [];
    const found = { ...(Array.isArray(args) ? options : args ?? options) };
    if (found.shell) {
      const shell = typeof found.shell === 'string' ? found.shell : '/bin/sh';
      return { file: shell, argv: [shell, '-c', [file, ...list].join(' ')], found };
    }
    return { file, argv: [found.argv0 ?? file, ...list], found };
  }

  const { spawn } = child.ChildProcess.prototype;
  child.ChildProcess.prototype.spawn = dressed(function (given) {
    const options = { ...given, file: String(given.file) };
    if (Array.isArray(options.args)) options.args = Array.from(options.args, String);
    if (Array.isArray(options.envPairs)) options.envPairs = Array.from(options.envPairs, String);
    const env = options.envPairs && Object.fromEntries(options.envPairs.map((pair) => {
      const at = pair.indexOf('=');
      return [pair.slice(0, at), pair.slice(at + 1)];
    }));
    if (options.cwd) options.cwd = plainPath(options.cwd);
    const answer = starts(options.file, options.args ?? [options.file], env, options.cwd && textOf(options.cwd));
    if (!effects.tape || !answer) return Reflect.apply(spawn, this, [options]);
    if (effects.replay) return children.play(effects, this, options, answer.result ?? {});
    const { options: recordable, through } = children.recordable(options);
    const found = Reflect.apply(spawn, this, [recordable]);
    if (answer.result?.spawn !== undefined && this.stdio) children.record(effects, this, answer.result.spawn, through);
    return found;
  }, spawn);

  const waited = effects.tape && waiting.install(effects, starts);
  for (const name of ['spawnSync', 'execFileSync', 'execSync']) {
    const real = child[name];
    child[name] = dressed(function (file, ...rest) {
      const args = rest.map((one) => (Array.isArray(one) ? Array.from(one, String)
        : one !== null && typeof one === 'object' ? plainOptions(one) : one));
      const { file: program, argv, found } = name === 'execSync'
        ? parts(String(file), [], { shell: true, ...args[0] }) : parts(String(file), args[0], args[1]);
      const asked = [program, argv, found.env, found.cwd && textOf(found.cwd)];
      if (waited) return waited[name](String(file), args, asked);
      starts(...asked);
      return Reflect.apply(real, this, [String(file), ...args]);
    }, real);
  }

  const { execve } = process;
  if (execve) {
    process.execve = dressed((given, argv = [given], env = process.env) => {
      const words = Array.from(argv, String);
      const found = { ...env };
      starts(String(given), words, found);
      return execve.call(process, String(given), words, found);
    }, execve);
  }
}

// Options that say the same however often they are looked at.
function plainOptions(given) {
  const options = {};
  for (const key in given) options[key] = given[key];
  if (options.env) options.env = { ...options.env };
  if (options.cwd) options.cwd = plainPath(options.cwd);
  return options;
}

module.exports = { install };
