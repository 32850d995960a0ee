// SPDX-License-Identifier: MIT
// The policy vectors in Node.js. `node policy.mjs spec/policy/vectors` prints what is wrong, one line each, and how many
// cases there were; `node policy.mjs` answers JSON lines {text, root, ...} with what was read, for a comparison.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { isDeepStrictEqual } from 'node:util';

import { World } from './policy_world.mjs';

const require = createRequire(import.meta.url);
const { Answers } = require('../../src/agentbox/guest/node/policy.cjs');
const { canonicalText, hashOf, passedOn, tablesOf } = require('../../src/agentbox/guest/node/tables.cjs');

const content = (one) => (one.bytes_hex === undefined ? one.text : Buffer.from(one.bytes_hex, 'hex'));

// What reading gives, errors by their place.
function read(one) {
  try {
    const policy = new World(one).parse(content(one));
    return { rules: canonicalText(policy).split('\n').slice(0, -1), tables: tablesOf(policy) };
  } catch (error) {
    if (error.name !== 'PolicySyntaxError') throw error;
    const { path, line, column, problem } = error;
    return { error: { path, line, column, problem } };
  }
}

function answer(answers, policies, world, ask, counting) {
  switch (ask.verb) {
    case 'read': return answers.read(world.path(ask.path), ask.identity);
    case 'write': return answers.write(world.path(ask.path), ask.size_bytes, ask.identity, ask.whole);
    case 'resolve': return answers.resolve(ask.host);
    case 'connect': return answers.connect(ask.host, ask.port, ask.address, ask.now_seconds);
    case 'unix': return answers.unix(ask.path[0] === '@' ? ask.path : world.resolve(ask.path), ask.now_seconds);
    case 'exec': return answers.start(ask.argv, 'program' in ask ? ask.program
      : ask.argv.length ? world.programOf(ask.argv[0]) : null, ask.parent);
    case 'env': {
      const verdicts = policies.map((policy) => passedOn(policy, ask.name));
      const found = verdicts.find((verdict) => !verdict.allowed) ?? verdicts[0];
      return { allowed: found.allowed, rule: found.rule && { line: found.rule.place.line } };
    }
    default: throw new Error(`no question ${ask.verb} ${counting}`);
  }
}

const judges = {
  parse(one) {
    const found = read(one);
    const expected = one.error ? { error: { path: '<policy>', ...one.error } } : { rules: one.rules };
    const shown = found.error ? found : { rules: found.rules };
    return isDeepStrictEqual(shown, expected) ? [] : [[expected, shown]];
  },
  hash(one) {
    const found = hashOf(new World(one).parse(one.text));
    return found === one.policy_sha256 ? [] : [[one.policy_sha256, found]];
  },
  decide(one) {
    const world = new World(one);
    const policies = [one.policy, ...('ceiling' in one ? [one.ceiling] : [])].map((text) => world.parse(text));
    const counting = 'once' in one;
    const answers = new Answers(tablesOf(...policies), counting);
    for (const identity of one.once ?? []) answers.expectOnce(identity);
    return one.questions.flatMap(([ask, allowed, line]) => {
      const found = answer(answers, policies, world, ask, counting);
      const shown = [found.allowed, found.rule?.line ?? null];
      return isDeepStrictEqual(shown, [allowed, line]) ? [] : [[ask, [allowed, line], shown]];
    });
  },
};

if (process.argv[2]) {
  for (const [kind, judge] of Object.entries(judges)) {
    const { format, root, home, cases } = JSON.parse(readFileSync(`${process.argv[2]}/${kind}.json`, 'utf8'));
    if (format !== `agentbox-policy-${kind}/1`) throw new Error(`${kind}.json is of another form`);
    for (const one of cases) for (const wrong of judge({ root, home, ...one })) console.log(JSON.stringify([kind, one.name, ...wrong]));
    console.log(`${kind}: ${cases.length}`);
  }
} else {
  for await (const line of createInterface({ input: process.stdin })) console.log(JSON.stringify(read(JSON.parse(line))));
}
