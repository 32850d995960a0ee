// SPDX-License-Identifier: MIT
// The doors to other programs and to native code: child processes, workers, bindings.
'use strict';

const child = require('node:child_process');
const fs = require('node:fs');
const Module = require('node:module');
const workers = require('node:worker_threads');

const { AgentboxPolicyError } = require('./effects.cjs');
const { dressed } = require('./files.cjs');

const { accessSync, constants, readlinkSync } = fs;
const HARMLESS_BINDINGS = new Set(['constants', 'natives', 'config', 'util', 'uv', 'buffer', 'url', 'v8', 'zlib', 'crypto']);
const PYTHON_WITHOUT_GUARD = /^-[a-zA-Z]*[ISE]/;

function install(effects, kept, shim) {
  const { answers } = effects;
  const parent = readlinkSync('/proc/self/exe');

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

  function starts(file, argv, env, directory) {
    const program = programOf(String(file), env, directory);
    if (program === null) return;
    const words = argv.map(String);
    const shown = words.slice(0, 64).map((word) => word.slice(0, 1000));
    if (!answers.start(words, program, parent).allowed) {
      effects.deny('exec', shown.join(' '));
      return;
    }
    const reason = effects.strict && effects.enforce ? unguarded(program, words, env) : '';
    if (reason) effects.deny('exec', `${shown.join(' ')} (${reason})`);
    effects.happens('proc.spawn', { argv: shown, program });
  }

  function unguarded(program, words, env) {
    const name = program.slice(program.lastIndexOf('/') + 1);
    const isPython = name.startsWith('python');
    if (!isPython && name !== 'node') return '';
    if (isPython && words.slice(1).some((word) => PYTHON_WITHOUT_GUARD.test(word))) return 'it would start without the guard';
    const given = env ?? process.env;
    const lacks = Object.keys(kept).find((key) => !(isPython && key === 'NODE_OPTIONS')
      && !(!isPython && key === 'PYTHONPATH') && !String(given[key] ?? '').includes(kept[key]));
    return lacks ? `its environment lacks ${lacks} as the guard needs it` : '';
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
    const options = { ...given };
    const env = options.envPairs && Object.fromEntries(options.envPairs.map((pair) => {
      const at = pair.indexOf('=');
      return [pair.slice(0, at), pair.slice(at + 1)];
    }));
    starts(options.file, options.args ?? [options.file], env, options.cwd && effects.text(options.cwd));
    return Reflect.apply(spawn, this, [options]);
  }, spawn);

  for (const name of ['spawnSync', 'execFileSync', 'execSync']) {
    const real = child[name];
    child[name] = dressed(function (file, ...rest) {
      const args = rest.map((one) => (Array.isArray(one) ? one.map(String)
        : one !== null && typeof one === 'object' ? { ...one } : one));
      const { file: program, argv, found } = name === 'execSync'
        ? parts(String(file), [], { shell: true, ...args[0] }) : parts(String(file), args[0], args[1]);
      starts(program, argv, found.env, found.cwd && effects.text(found.cwd));
      return Reflect.apply(real, this, [String(file), ...args]);
    }, real);
  }

  // A worker that reads other options than this thread would start without the guard.
  workers.Worker = class Worker extends workers.Worker {
    constructor(file, given = {}) {
      const options = { ...given };
      if (options.execArgv) options.execArgv = ['--require', shim, ...options.execArgv];
      if (options.env !== workers.SHARE_ENV) options.env = { ...(options.env ?? process.env), ...kept };
      super(file, options);
    }
  };

  const refuse = (what) => () => {
    throw new AgentboxPolicyError(`agentbox: policy denies binding ${what}`);
  };
  const { binding } = process;
  process.binding = dressed((name) => {
    if (HARMLESS_BINDINGS.has(String(name))) return binding.call(process, String(name));
    effects.deny('binding', String(name));
    return binding.call(process, String(name));
  }, binding);
  process._linkedBinding = refuse('_linkedBinding');
  const { dlopen } = process;
  process.dlopen = dressed(function (module, filename, ...rest) {
    if (effects.strict) effects.deny('binding', `native code of ${filename}`);
    else effects.read(filename, false);
    return Reflect.apply(dlopen, process, [module, filename, ...rest]);
  }, dlopen);
  if (effects.strict) closeTheRest(effects);
}

// Doors below or around the shim, where no wall stands behind them.
function closeTheRest(effects) {
  const inspector = require('node:inspector');
  for (const name of ['open', 'Session']) {
    inspector[name] = function () { effects.deny('introspection', `inspector.${name}`); };
  }
  if (Module.register) Module.register = () => effects.deny('introspection', 'module.register');
  const { kill } = process;
  process.kill = dressed((pid, signal) => {
    if (pid === process.ppid || pid === -1 || pid === 1) effects.deny('kill', String(pid));
    return kill.call(process, pid, signal);
  }, kill);
  const load = Module._load;
  Module._load = function (request, ...rest) {
    if (/^(?:node:)?(?:wasi|sqlite|trace_events|repl)$/.test(String(request))) effects.deny('introspection', String(request));
    return Reflect.apply(load, this, [String(request), ...rest]);
  };
}

module.exports = { install };
