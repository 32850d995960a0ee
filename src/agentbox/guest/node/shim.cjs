// SPDX-License-Identifier: MIT
// The guard of a Node process: loaded by NODE_OPTIONS before any code of the program, and again in each worker.
// What is missing or wrong ends the process.
'use strict';

(() => {
  // A worker may be told twice to load it.
  const armed = Symbol.for('agentbox.guard');
  if (process[armed]) return;
  Object.defineProperty(process, armed, { value: true });
  const fs = require('node:fs');
  const { env } = process;
  const exit = process.reallyExit.bind(process);

  function fail(reason) {
    fs.writeSync(2, `agentbox: failed to arm sandbox, refusing to run: ${reason}\n`);
    exit(70);
  }

  function oneOf(name, meanings, fallback) {
    const value = env[name] || fallback;
    if (!Object.hasOwn(meanings, value)) throw new Error(`${name} is '${value}', not one of ${Object.keys(meanings).join(', ')}`);
    return meanings[value];
  }

  function tables() {
    const path = env.AGENTBOX_POLICY;
    if (!path) throw new Error('AGENTBOX_POLICY names no policy');
    let text;
    try {
      text = fs.readFileSync(path, 'utf8');
    } catch (error) {
      throw new Error(`cannot read the policy ${path}: ${error.code}`);
    }
    if (text[0] !== '{') return require('./reading.cjs').tablesOfText(text, path, env.AGENTBOX_ROOT || process.cwd());
    let found;
    try {
      found = JSON.parse(text);
    } catch {
      throw new Error(`the policy ${path} is damaged`);
    }
    if (found?.format !== 'agentbox-guard/1') throw new Error(`the policy ${path} is of another form`);
    return found;
  }

  function channelPath() {
    const path = env.AGENTBOX_CHANNEL;
    if (!path) throw new Error('AGENTBOX_CHANNEL names no channel to the host');
    const found = fs.statSync(path, { throwIfNoEntry: false });
    if (!found) throw new Error(`there is no channel at ${path}`);
    if (!found.isSocket()) throw new Error(`${path} is no socket`);
    return path;
  }

  try {
    const Module = require('node:module');
    const { Answers } = require('./policy.cjs');
    const { Channel } = require('./channel.cjs');
    const { Effects } = require('./effects.cjs');
    const { beginning } = require('./threads.cjs');
    const { Tape } = require('./tape.cjs');
    const strict = oneOf('AGENTBOX_WALL', { jail: false, none: true }, 'none');
    const resolved = (path) => {
      try {
        return fs.realpathSync(path);
      } catch {
        return path;
      }
    };
    const script = env.AGENTBOX_ENTRY || (strict ? '' : process.argv[1] || `${process.cwd()}/.`);
    const thread = beginning(env);
    const channel = new Channel(channelPath(), thread.lane);
    const replay = oneOf('AGENTBOX_MODE', { record: false, replay: true }, 'record');
    const tape = thread.seed ? new Tape(channel, replay) : null;
    const effects = new Effects({
      answers: new Answers(tables()),
      channel,
      enforce: oneOf('AGENTBOX_ENFORCE', { 1: true, 0: false }, '1'),
      strict,
      tape,
      privates: (env.AGENTBOX_PRIVATE ?? '').split(':').filter((path) => path[0] === '/').map(resolved),
      entry: script && resolved(script),
    });
    const kept = {};
    for (const name of ['POLICY', 'CHANNEL', 'ROOT', 'MODE', 'ENFORCE', 'WALL', 'PRIVATE', 'ENTRY', 'NODE_FLAGS']) {
      if (env[`AGENTBOX_${name}`] !== undefined) kept[`AGENTBOX_${name}`] = env[`AGENTBOX_${name}`];
    }
    kept.NODE_OPTIONS = [`--require "${__filename}"`, env.AGENTBOX_NODE_FLAGS].filter(Boolean).join(' ');
    kept.PYTHONPATH = (env.PYTHONPATH ?? '').split(':')[0];
    // Loaded before any is installed: each takes the real functions for itself.
    const doors = ['network', 'processes', 'loading', 'below', 'files', 'client'].map((name) => require(`./${name}.cjs`));
    const frozen = tape && require('./frozen.cjs');
    frozen?.install(tape, thread);
    require('./threads.cjs').install(thread, tape?.turns, kept, __filename);
    for (const door of doors) door.install(effects, kept);
    frozen?.installAbove(tape);
    Module.syncBuiltinESMExports();
    for (const name of Object.keys(require.cache)) if (name.startsWith(`${__dirname}/`)) delete require.cache[name];
    if (module.children) module.children.length = 0;
  } catch (error) {
    fail(error?.message ?? String(error));
  }
})();
