// SPDX-License-Identifier: MIT
// A policy that was read as text: its hash, its tables (those of guest/tables.py), and what it says of variables.
'use strict';

const { createHash } = require('node:crypto');

const known = require('./known.cjs');
const { matches } = require('./policy.cjs');

const FORMAT = 'agentbox-guard/1';
const OWN_NAMES = ['.agentbox', 'trace.jsonl'];
// The order of the old keys is part of the hash of every policy that was written before the others existed.
const HASHED_FIRST = ['read', 'write', 'net', 'exec', 'env'];
const HASHED_NEXT = ['read-once', 'limits', 'protect'];
const OF_GUARDS = new Set(['path', 'host', 'unix', 'exec', 'switch']);

const textOf = (rule) => (rule.deny ? `deny: ${rule.verb} ${rule.value}` : `${rule.verb}: ${rule.value}`);

function byCodePoint(left, right) {
  const a = Array.from(left);
  const b = Array.from(right);
  const at = a.findIndex((character, index) => character !== b[index]);
  if (at < 0) return a.length - b.length;
  return at >= b.length ? 1 : a[at].codePointAt(0) - b[at].codePointAt(0);
}

// The policy in one spelling: one rule a line, includes written out.
const canonicalText = (policy) => policy.rules.map((rule) => `${textOf(rule)}\n`).join('');

function hashOf(policy) {
  const lines = [];
  for (const [deny, verbs] of [[false, HASHED_FIRST], [false, HASHED_NEXT], [true, HASHED_FIRST]]) {
    for (const verb of verbs) {
      const values = policy.rules.filter((rule) => rule.verb === verb && rule.deny === deny).map((rule) => rule.canonical);
      for (const value of values.sort(byCodePoint)) lines.push(`${deny ? 'deny: ' : ''}${verb}${deny ? '' : ':'} ${value}`);
    }
  }
  return createHash('sha256').update(`${lines.join('\n')}\n`).digest('hex');
}

// The tables of some policies that are asked at once.
function tablesOf(...policies) {
  const hashes = policies.map(hashOf);
  return {
    format: FORMAT,
    policy_sha256: hashes.length === 1 ? hashes[0]
      : createHash('sha256').update(hashes.map((hash) => `${hash}\n`).join('')).digest('hex'),
    policies: policies.map(({ rules, realRoot, sources }) => ({
      rules: rules.filter((rule) => OF_GUARDS.has(rule.target[0])).map((rule) => (
        [rule.verb, rule.deny, textOf(rule), rule.place.line, rule.canonical, rule.target])),
      own: [...new Set([...sources, ...OWN_NAMES.map((name) => `${realRoot.replace(/\/+$/, '')}/${name}`)])].sort(byCodePoint),
    })),
    ...known,
  };
}

// Whether a variable is passed on: {allowed, rule}.
function passedOn(policy, name) {
  const fitting = policy.rules.filter(({ verb, target }) => name && verb === 'env' && matches(target[1], name));
  const rule = fitting.find(({ deny }) => deny) ?? fitting[0] ?? null;
  return { allowed: Boolean(rule) && !rule.deny, rule };
}

module.exports = { canonicalText, hashOf, passedOn, tablesOf };
