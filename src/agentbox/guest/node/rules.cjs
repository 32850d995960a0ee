// SPDX-License-Identifier: MIT
// How the value of each kind of rule is read: {target, canonical}, the target as a row of guest/tables.py.
'use strict';

const { tokens } = require('./glob.cjs');
const { readNet } = require('./net_rules.cjs');
const { pathTarget } = require('./paths.cjs');
const { characters, Value } = require('./text.cjs');

const MAX_VARIABLE_NAME = 256;
const UNITS = { B: 1, KB: 2 ** 10, MB: 2 ** 20, GB: 2 ** 30, TB: 2 ** 40 };
// Name of a limit, and whether a fraction has a meaning.
const LIMITS = { timeout_seconds: true, memory_mb: false, cpus: true, pids: false, disk_mb: false, max_output_bytes: false };

// Where the white space before a last `max=` stands; -1 when the text does not end in one.
function optionAt(text) {
  const at = Math.max(text.lastIndexOf(' max='), text.lastIndexOf('\tmax='));
  return at >= 0 && !/[ \t]/.test(text.slice(at + 1)) ? at : -1;
}

function refuseCap(value, verb) {
  const at = optionAt(value.text);
  if (at >= 0) value.fail('bad_size', `max= has no meaning after '${verb}'`, 'only `write:` has a cap', at + 1);
}

function readPath(verb) {
  return (value, surroundings) => {
    refuseCap(value, verb);
    const { target, text } = pathTarget(value, surroundings);
    return { target, canonical: text };
  };
}

function readWrite(value, surroundings, deny) {
  if (deny) refuseCap(value, 'deny: write');
  const at = optionAt(value.text);
  if (at < 0) {
    const { target, text } = pathTarget(value, surroundings);
    return { target, canonical: text };
  }
  const size = value.text.slice(at + ' max='.length);
  const parsed = /^([0-9]{1,15})(B|KB|MB|GB|TB)?$/i.exec(size);
  const bytes = parsed ? Number(parsed[1]) * UNITS[(parsed[2] ?? 'B').toUpperCase()] : 0;
  if (!(bytes >= 1 && Number.isSafeInteger(bytes))) {
    value.fail('bad_size', `max=${size} is no size`, 'for example max=10MB', at + ' max='.length);
  }
  const path = new Value(value.text.slice(0, at).replace(/[ \t]+$/, ''), value.place);
  const { target, text } = pathTarget(path, surroundings, bytes);
  return { target, canonical: `${text} max=${bytes}` };
}

function readExec(value, { root, home, resolve, findProgram, libexecOf }, deny) {
  const words = splitWords(value);
  if (!words[0]) value.fail('bad_exec', 'the rule names no program', 'write the name or the path of a program');
  if (/[*?]/.test(words[0])) value.fail('bad_exec', 'exec rules have no wildcards', 'write one rule for each program');
  let [name] = words;
  if (name.startsWith('~/')) {
    if (home === null) value.fail('bad_path', "'~' has no meaning here: there is no home directory", 'write an absolute path');
    name = home + name.slice(1);
  } else if (name.includes('/') && name[0] !== '/') {
    name = `${root.replace(/\/+$/, '')}/${name}`;
  }
  const program = findProgram(name) ?? null;
  // A program that the run may still make: the file at that very place. A denial is for all of that name.
  if (program === null && words[0].includes('/') && !deny) return { target: ['exec', words, resolve(name), []] };
  return { target: ['exec', words, program, program ? [...libexecOf(program)] : []] };
}

// The words of a shell command line, without any expansion.
function splitWords(value) {
  const { text } = value;
  const fail = (reason, at) => value.fail('unbalanced_quote', reason,
    'a comma ends a rule, within quotes too: put such a command into a script and allow that', at);
  const words = [];
  let word = null;
  for (let at = 0; at < text.length;) {
    const character = text[at];
    if (character === ' ' || character === '\t') {
      if (word !== null) words.push(word);
      word = null;
      at += 1;
    } else if (character === "'") {
      const end = text.indexOf("'", at + 1);
      if (end < 0) fail("unbalanced quote '", at);
      word = (word ?? '') + text.slice(at + 1, end);
      at = end + 1;
    } else if (character === '"') {
      const quoted = /^"((?:\\["\\]|[^"\\]|\\(?!["\\]))*)"/u.exec(text.slice(at));
      if (!quoted) fail('unbalanced quote "', at);
      word = (word ?? '') + quoted[1].replace(/\\(["\\])/g, '$1');
      at += quoted[0].length;
    } else {
      const escaped = character === '\\' ? 1 : 0;
      if (escaped && at + 1 === text.length) fail('a backslash at the end escapes nothing', at);
      const plain = String.fromCodePoint(text.codePointAt(at + escaped));
      word = (word ?? '') + plain;
      at += escaped + plain.length;
    }
  }
  if (word !== null) words.push(word);
  return words;
}

function readEnv(value) {
  const { text } = value;
  for (const [sign, advice] of [['=', 'a policy passes variables on, it does not set them; write the name alone'],
    [' ', 'separate names with commas'], ['\t', 'separate names with commas'], ['$', 'write the name without $']]) {
    if (text.includes(sign)) value.fail('bad_env', `'${text}' is no name of a variable`, advice, text.indexOf(sign));
  }
  if (characters(text) > MAX_VARIABLE_NAME) {
    value.fail('bad_env', `a name of more than ${MAX_VARIABLE_NAME} characters`, 'shorten it, with * for example');
  }
  return { target: ['env', tokens(text, true)] };
}

function readLimit(value) {
  const { text } = value;
  const equals = text.indexOf('=');
  const name = equals < 0 ? text : text.slice(0, equals);
  if (!Object.hasOwn(LIMITS, name)) value.fail('bad_limit', `unknown limit '${name}'`, `the limits are ${Object.keys(LIMITS).join(', ')}`);
  const start = equals < 0 ? text.length : equals + 1;
  const parsed = /^([0-9]{1,15})(\.[0-9]{1,3})?$/.exec(text.slice(start));
  if (equals < 0 || !parsed || (parsed[2] && !LIMITS[name])) {
    value.fail('bad_limit', `'${text.slice(start)}' is no amount for ${name}`, `for example ${name}=2`, start);
  }
  const amount = Number(parsed[0]);
  if (amount <= 0) value.fail('bad_limit', `${name} must be more than 0`, 'leave it out for the default', start);
  return { target: ['limit', name, amount], canonical: `${name}=${amount}` };
}

function readProtect(value) {
  if (value.text !== 'on' && value.text !== 'off') {
    value.fail('bad_protect', `protect is on or off, not '${value.text}'`, 'write `protect: on`');
  }
  return { target: ['switch', value.text === 'on'] };
}

// `original`: the key may also be written in any case and without the space; `deniable` and `allowable`: whether
// `deny: VERB VALUE` and `allow: VERB VALUE` exist.
const RULES = {
  read: { readRule: readPath('read'), original: true, deniable: true, allowable: true },
  write: { readRule: readWrite, original: true, deniable: true, allowable: true },
  net: { readRule: readNet, original: true, deniable: true, allowable: true },
  exec: { readRule: readExec, original: true, deniable: true, allowable: true },
  env: { readRule: readEnv, original: true, deniable: true, allowable: true },
  'read-once': { readRule: readPath('read-once'), allowable: true },
  limits: { readRule: readLimit },
  protect: { readRule: readProtect },
};

module.exports = { RULES };
