// SPDX-License-Identifier: MIT
// Doors below or around the shim: files that the runtime writes by itself, other ways to native code, the debugger. Most
// are closed only where no wall stands behind them.
'use strict';

const crypto = require('node:crypto');
const Module = require('node:module');
const { resolve } = require('node:path');
const v8 = require('node:v8');

const { dressed } = require('./dressing.cjs');
const { AgentboxPolicyError } = require('./effects.cjs');
const { BELOW } = require('./loading.cjs');
const { plainPath, textOf } = require('./resolve.cjs');

const HARMLESS_BINDINGS = new Set(['constants', 'natives', 'config', 'util', 'uv', 'buffer', 'url', 'zlib']);
const HARMLESS_FLAGS = /^--(?:no[-_])?(?:expose[-_]gc|(?:max|min|initial|semi)[-_][a-z_-]+|stack[-_]size|harmony[a-z_-]*|allow[-_]natives[-_]syntax)(?:=\d+)?$/;

function install(effects) {
  const { binding, dlopen, loadEnvFile, report } = process;
  process.binding = dressed((name) => {
    if (!HARMLESS_BINDINGS.has(String(name))) effects.deny('binding', String(name));
    return binding.call(process, String(name));
  }, binding);
  const { _linkedBinding: linked } = process;
  process._linkedBinding = (name) => {
    effects.deny('binding', `_linkedBinding ${name}`);
    return linked.call(process, String(name));
  };
  process.dlopen = dressed(function (module, filename, ...rest) {
    const path = String(filename);
    if (effects.strict) effects.deny('binding', `native code of ${path}`);
    else effects.read(path, false);
    return Reflect.apply(dlopen, process, [module, path, ...rest]);
  }, dlopen);
  if (loadEnvFile) {
    process.loadEnvFile = dressed((given = '.env') => {
      const path = plainPath(given);
      effects.read(textOf(path));
      return loadEnvFile.call(process, path);
    }, loadEnvFile);
  }
  written(effects, report);
  if (effects.strict) closeTheRest(effects);
}

// What the runtime writes where it is told to.
function written(effects, report) {
  const asked = (path) => {
    const target = effects.mayWrite(textOf(resolve(String(path))), { follow: true });
    if (target) effects.happens('fs.open_write', { path: target.full });
  };
  const { writeReport } = report;
  report.writeReport = dressed((file, error) => {
    const name = typeof file === 'string' ? file : undefined;
    asked(resolve(report.directory || '.', name || report.filename || 'report.json'));
    return Reflect.apply(writeReport, report, name === undefined ? [file, error] : [name, error]);
  }, writeReport);
  for (const name of ['directory', 'filename']) {
    const { get, set } = Object.getOwnPropertyDescriptor(report, name) ?? {};
    if (!set) continue;
    Object.defineProperty(report, name, {
      get: () => get.call(report),
      set(value) {
        if (value) asked(resolve(name === 'directory' ? '.' : report.directory || '.', String(value)));
        set.call(report, value);
      },
    });
  }
  const { writeHeapSnapshot, setHeapSnapshotNearHeapLimit } = v8;
  v8.writeHeapSnapshot = dressed((file, ...rest) => {
    const path = file === undefined ? undefined : plainPath(file);
    asked(path === undefined ? 'Heap.heapsnapshot' : path);
    return Reflect.apply(writeHeapSnapshot, v8, [path, ...rest]);
  }, writeHeapSnapshot);
  if (setHeapSnapshotNearHeapLimit) {
    v8.setHeapSnapshotNearHeapLimit = dressed((limit) => {
      asked('Heap.heapsnapshot');
      return setHeapSnapshotNearHeapLimit.call(v8, limit);
    }, setHeapSnapshotNearHeapLimit);
  }
  const { enableCompileCache } = Module;
  if (enableCompileCache) {
    Module.enableCompileCache = dressed((given) => {
      const directory = typeof given === 'string' ? given : given?.directory;
      if (directory !== undefined) asked(directory);
      return enableCompileCache.call(Module, directory);
    }, enableCompileCache);
  }
}

function closeTheRest(effects) {
  const inspector = require('node:inspector');
  for (const name of ['open', 'Session']) {
    inspector[name] = function () {
      effects.deny('introspection', `inspector.${name}`);
      throw new AgentboxPolicyError(`agentbox: inspector.${name} needs a wall`);
    };
  }
  for (const name of ['register', 'registerHooks']) {
    if (Module[name]) Module[name] = dressed(() => effects.deny('introspection', `module.${name}`), Module[name]);
  }
  const { kill, _kill, _debugProcess: debug, getBuiltinModule } = process;
  const mayKill = (pid) => {
    if (pid === process.ppid || pid === -1 || pid === 1) effects.deny('kill', String(pid));
  };
  process.kill = dressed((given, signal) => {
    const pid = Number(given);
    mayKill(pid);
    return kill.call(process, pid, signal);
  }, kill);
  process._kill = (given, signal) => {
    const pid = Number(given);
    mayKill(pid);
    return _kill.call(process, pid, signal);
  };
  process._debugProcess = (pid) => {
    effects.deny('introspection', `process ${pid}`);
    return debug.call(process, pid);
  };
  const load = Module._load;
  Module._load = function (given, ...rest) {
    const request = String(given);
    if (BELOW.test(request)) effects.deny('introspection', request);
    return Reflect.apply(load, this, [request, ...rest]);
  };
  if (getBuiltinModule) {
    process.getBuiltinModule = dressed((given) => {
      const request = String(given);
      if (BELOW.test(request)) effects.deny('introspection', request);
      return getBuiltinModule.call(process, request);
    }, getBuiltinModule);
  }
  const { setFlagsFromString } = v8;
  v8.setFlagsFromString = dressed((given) => {
    const flags = String(given);
    if (!flags.split(/\s+/).filter(Boolean).every((flag) => HARMLESS_FLAGS.test(flag))) effects.deny('introspection', flags);
    return setFlagsFromString.call(v8, flags);
  }, setFlagsFromString);
  const { setEngine } = crypto;
  if (setEngine) {
    crypto.setEngine = dressed((engine, ...rest) => {
      effects.deny('binding', `engine ${engine}`);
      return Reflect.apply(setEngine, crypto, [String(engine), ...rest]);
    }, setEngine);
  }
}

module.exports = { install };
