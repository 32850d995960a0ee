// SPDX-License-Identifier: MIT
// Child processes that are waited for (spawnSync and what stands on it), in a run that is recorded or replayed.
'use strict';

const child = require('node:child_process');
const { createHash } = require('node:crypto');
const { isatty } = require('node:tty');

const { failureOf, inherited, raised, signalName, signalNumber, tellInput, write } = require('./children.cjs');
const { standIn } = require('./relay.cjs');
const { MAX_KEPT, packed, unpacked } = require('./values.cjs');

const { spawnSync } = child;

// How spawnSync reads its arguments: (file, [args], [options]).
function optionsOf([first, second]) {
  return (Array.isArray(first) || first === undefined || first === null ? second : first) ?? {};
}

const withOptions = ([first], options) => (Array.isArray(first) ? [first, options] : [[], options]);

function decoded(result, { encoding }) {
  if (result.output && encoding && encoding !== 'buffer') {
    result.output = result.output.map((one) => (one ? one.toString(encoding) : one));
  }
  result.stdout = result.output && result.output[1];
  result.stderr = result.output && result.output[2];
  return result;
}

const inputOf = (input, encoding) => (typeof input === 'string'
  ? Buffer.from(input, encoding === 'buffer' ? undefined : encoding) : input);

// What a program gets for `stdio`: in place of this process's own output, unless that is a terminal, what keeps a copy.
// `finish` gives what was kept, beside what came through pipes, and which of it was too much.
function through(stdio) {
  const held = [];
  const all = Array.isArray(stdio) ? [...stdio] : Array(3).fill(stdio);
  inherited(stdio ?? 'pipe').forEach((fd, at) => {
    if (fd === null || at === 0 || isatty(fd)) return;
    try {
      held[at] = standIn(fd);
      all[at] = held[at].fd;
    } catch {
      // It writes there itself, and a replay will say that its output is missing.
    }
  });
  return {
    stdio: held.length ? all : stdio,
    finish: (output) => {
      const found = [...output ?? []];
      const lost = new Set();
      held.forEach((one, at) => {
        found[at] = one.finish();
        if (!found[at]) lost.add(at);
      });
      return { output: output && found, lost };
    },
  };
}

// Run a program to its end and tell the host what came of it.
function recorded(effects, spawn, file, rest) {
  const options = optionsOf(rest);
  const given = inputOf(options.input, options.encoding);
  const { stdio, finish } = spawn === undefined ? options : through(options.stdio);
  const found = spawnSync(file, ...withOptions(rest, { ...options, stdio, input: given, encoding: undefined }));
  if (spawn !== undefined) {
    const { status, signal, pid, error } = found;
    const { output, lost } = finish(found.output);
    const args = { spawn, code: signal ? -signalNumber(signal) : status ?? 0, pid };
    if (error) Object.assign(args, { error: failureOf(error), status, signal });
    // A program that never ran has no output at all.
    if (!output) args.ran = false;
    // What is more than is kept cannot be given again.
    if (!lost.size && ![1, 2].some((at) => output?.[at]?.length > MAX_KEPT)) {
      if (output?.[1]) args.stdout = packed(effects.channel, output[1]);
      if (output?.[2]) args.stderr = packed(effects.channel, output[2]);
      effects.channel.send('observe', 'proc.result', args);
    }
  }
  return decoded(found, options);
}

// What came of it when the run was recorded.
function played(effects, answer, file, rest) {
  const options = optionsOf(rest);
  const { code = 0, pid = 0, error } = answer;
  const [out, err] = ['stdout', 'stderr'].map((name) => unpacked(effects.tape, answer[name]));
  const own = inherited(options.stdio ?? 'pipe');
  for (const [at, data] of [[1, out], [2, err]]) if (data && typeof own[at] === 'number') write(own[at], data);
  const shown = (at, data) => (typeof own[at] === 'number' ? null : data);
  const result = {
    ...(error && { error: raised(error) }),
    status: error ? answer.status ?? null : code < 0 ? null : code,
    signal: error ? answer.signal ?? null : code < 0 ? signalName(-code) : null,
    output: answer.ran === false ? null : [null, shown(1, out), shown(2, err)],
    pid,
  };
  return decoded(result, options);
}

// The functions that wait for a program; `starts` asks about one and gives the host's answer, undefined when there is no
// such program.
function install(effects, starts) {
  function run(file, rest, asked) {
    const answer = starts(...asked);
    if (answer && effects.channel.lane === effects.channel.own) {
      const tell = tellInput(effects);
      const { input, encoding } = optionsOf(rest);
      const given = inputOf(input, encoding);
      if (given?.byteLength) tell(createHash('sha256').update(given).digest('hex'), given.byteLength);
    }
    if (effects.replay && answer) return played(effects, answer.result ?? {}, file, rest);
    const { own, lane } = effects.channel;
    // What an effect for agents starts is recorded with that effect.
    return recorded(effects, own === lane ? answer?.result?.spawn : undefined, file, rest);
  }

  // What the runtime makes of a program that failed.
  function checked(found, words) {
    if (found.error) throw Object.assign(found.error, found);
    if (found.status === 0) return found.stdout;
    const text = found.stderr && found.stderr.length > 0 ? `\n${found.stderr}` : '';
    throw Object.assign(new Error(`Command failed: ${words}${text}`), found);
  }

  function passedOn(found, options) {
    if (!options.stdio && found.stderr) process.stderr.write(found.stderr);
    return found;
  }

  return {
    spawnSync: (file, rest, asked) => run(file, rest, asked),
    execFileSync(file, rest, asked) {
      const options = optionsOf(rest);
      const args = Array.isArray(rest[0]) ? rest[0] : [];
      return checked(passedOn(run(file, rest, asked), options), [options.argv0 || file, ...args].join(' '));
    },
    execSync(command, rest, asked) {
      const options = { ...rest[0] };
      options.shell = typeof options.shell === 'string' ? options.shell : true;
      return checked(passedOn(run(command, [options], asked), options), command);
    },
  };
}

module.exports = { install };
