// SPDX-License-Identifier: MIT
// Text of a policy in, its rules out; every fault is a PolicySyntaxError. The grammar is spec/policy/policy.ebnf, the
// meaning that of agentbox.policy.parser: spec/policy/vectors hold both to it.
'use strict';

const { isPattern } = require('./glob.cjs');
const { lexical } = require('./paths.cjs');
const { RULES } = require('./rules.cjs');
const { characters, decode, lines, strip } = require('./text.cjs');

const MAX_INCLUDE_DEPTH = 8;
const MAX_INCLUDED_FILES = 64;
const MAX_RULES = 10_000;
const MAX_WILDCARD_RULES = 500;
const MAX_VALUE_CHARACTERS = 4096;

// Keys that may be written in any case and without the space after the colon.
const ORIGINAL = new Set([...Object.keys(RULES).filter((verb) => RULES[verb].original), 'allow']);
const KEYS = new Set([...Object.keys(RULES), 'allow', 'deny', 'include']);
const KEY = /^([A-Za-z][A-Za-z0-9_-]*)([ \t]*):/;
const SECOND_KEY = new RegExp(`(^|[ \\t])((?:${[...KEYS].join('|')}):)(?=[ \\t]|$)`, 'i');
const EQUALS = /^([A-Za-z][A-Za-z-]*)[ \t]*=/;

const shown = (text) => `'${text.length <= 60 ? text : `${text.slice(0, 57)}...`}'`;
const joined = (directory, path) => lexical(path[0] === '/' ? path : `${directory}/${path}`);

// The policy that a text says: {rules, root, home, sources}. `world` has what the reader needs to know of the world, all
// but `root` optional: root, home, path (the file of the text), display, and the functions resolve(path),
// findProgram(name), libexecOf(program), readInclude(path). A rule is {verb, value, canonical, target, deny, place};
// its target is a row of guest/tables.py.
function parse(text, world) {
  if (world.root?.[0] !== '/') throw new TypeError(`root must be an absolute path, not ${world.root}`);
  const directory = (path) => path.replace(/\/+$/, '') || '/';
  const surroundings = {
    root: directory(world.root),
    home: world.home ? directory(world.home) : null,
    resolve: world.resolve ?? lexical,
    findProgram: world.findProgram ?? (() => null),
    libexecOf: world.libexecOf ?? (() => []),
  };
  const file = world.path ? joined(surroundings.root, world.path) : '';
  const reading = new Reading(surroundings, world.readInclude ?? null);
  reading.file(text, world.display ?? (world.path || '<policy>'), file, 0);
  return {
    rules: reading.rules,
    root: surroundings.root,
    home: surroundings.home,
    realRoot: surroundings.resolve(surroundings.root),
    sources: [...new Set(reading.sources.map((source) => surroundings.resolve(source)))],
  };
}

class Reading {
  constructor(surroundings, readInclude) {
    Object.assign(this, { surroundings, readInclude, open: [], sources: [], rules: [], wildcards: 0 });
  }

  // Adds the rules of one file. `file` is its absolute path, '' for text without a file.
  file(content, display, file, depth) {
    if (file) this.sources.push(file);
    this.open.push(file);
    let key = '';
    for (const line of lines(decode(content, display), display)) {
      if (line === null) {
        key = '';
        continue;
      }
      for (const segment of line) {
        const { key: current, value, direct } = keyed(segment, key);
        key = current;
        refuseSecondKey(value);
        if (!direct) refuseLooksLikeRule(value);
        if (key === 'include') this.included(value, file, depth);
        else this.rules.push(this.rule(key, value));
      }
    }
    this.open.pop();
  }

  rule(key, value) {
    if (this.rules.length >= MAX_RULES) {
      value.fail('too_many_rules', `more than ${MAX_RULES} rules`, 'join some with a wildcard or a directory');
    }
    if (characters(value.text) > MAX_VALUE_CHARACTERS) {
      value.fail('value_too_long', `a value of more than ${MAX_VALUE_CHARACTERS} characters`, 'shorten it');
    }
    const deny = key.startsWith('deny ');
    const verb = deny ? key.slice('deny '.length) : key;
    if (verb !== 'exec' && isPattern(value.text, true) && ++this.wildcards > MAX_WILDCARD_RULES) {
      value.fail('too_many_rules', `more than ${MAX_WILDCARD_RULES} rules with wildcards`, 'name directories instead');
    }
    const { canonical = value.text, target } = RULES[verb].readRule(value, this.surroundings, deny);
    return { verb, value: value.text, canonical, target, deny, place: value.place };
  }

  included(value, file, depth) {
    if (this.readInclude === null) value.fail('bad_include', 'nothing can be included here', 'put the rules into this policy');
    const target = joined(file.slice(0, Math.max(file.lastIndexOf('/'), 0)) || this.surroundings.root, value.text);
    if (this.open.includes(target)) value.fail('include_cycle', `${shown(value.text)} includes itself`, 'remove one of the include lines');
    if (depth >= MAX_INCLUDE_DEPTH) {
      value.fail('include_depth', `more than ${MAX_INCLUDE_DEPTH} includes below each other`, 'flatten them');
    }
    if (this.sources.length > MAX_INCLUDED_FILES) {
      value.fail('too_many_includes', `more than ${MAX_INCLUDED_FILES} included files`, 'join some of them');
    }
    let content;
    try {
      content = this.readInclude(target);
    } catch (error) {
      value.fail('bad_include', `cannot read ${target}: ${error.code ?? error.message}`, 'the path is relative to this file');
    }
    this.file(content, target, target, depth + 1);
  }
}

// The key that applies to a segment, its value, and whether the value stands directly after its key.
function keyed(segment, key) {
  const found = KEY.exec(segment.text);
  if (found) {
    const [{ length }, head, gap] = found;
    const spaced = length === segment.text.length || ' \t'.includes(segment.text[length]);
    const lowered = head.toLowerCase();
    if (ORIGINAL.has(lowered) || (KEYS.has(head) && spaced && !gap)) return started(lowered, segment.after(length));
    if (KEYS.has(lowered) || spaced) {
      const known = lowered.replaceAll('_', '-');
      segment.fail('unknown_key', `unknown key '${head}'`, KEYS.has(known)
        ? `write \`${known}: \` in lower case and with a space after the colon` : `the keys are ${[...KEYS].sort().join(', ')}`);
    }
  }
  if (!key) {
    segment.fail('no_key', `value ${shown(segment.text)} appears before any rule key`,
      'begin the line with a key, for example `read: ./data`');
  }
  return { key, value: segment, direct: false };
}

// A key and its first value.
function started(head, first) {
  let verb = head;
  let value = first;
  if (head === 'allow' || head === 'deny') {
    const [word, rest] = first.firstWord();
    verb = ORIGINAL.has(word.toLowerCase()) ? word.toLowerCase() : word;
    const known = Object.keys(RULES).filter((name) => RULES[name][head === 'deny' ? 'deniable' : 'allowable']);
    if (!known.includes(verb)) {
      first.fail('unknown_verb', `unknown verb '${word}' after '${head}:'`, `the verbs are ${known.join(', ')}`);
    }
    value = rest;
  }
  if (!value.text) value.fail('empty_value', `empty value for '${verb}'`, 'write the value on the same line');
  const inner = KEY.exec(value.text);
  if (inner && verb !== 'exec' && ['', ' ', '\t'].includes(value.text.slice(inner[0].length, inner[0].length + 1))) {
    value.fail('two_keys', `a second key, '${inner[0]}', in one value`, 'put a comma or a new line before it');
  }
  return { key: head === 'deny' ? `deny ${verb}` : verb, value, direct: true };
}

// A key within a value is a forgotten comma.
function refuseSecondKey(value) {
  const found = SECOND_KEY.exec(value.text);
  if (found) {
    value.fail('two_keys', `a second key, '${found[2]}', in one value`, 'put a comma before it', found.index + found[1].length);
  }
}

// A further value that begins like a rule is a forgotten colon, not a file of that name.
function refuseLooksLikeRule(value) {
  const [word, rest] = value.firstWord();
  const equals = EQUALS.exec(value.text);
  const name = (equals ? equals[1] : word).toLowerCase();
  if (!KEYS.has(name) || !(equals || rest.text)) return;
  const correct = equals ? strip(value.text.slice(equals[0].length)) : rest.text;
  value.fail('looks_like_rule', `value ${shown(value.text)} looks like a rule`,
    `write \`${name}: ${correct}\`; if it is a value, put it directly after its key on a line of its own`);
}

module.exports = { parse };
