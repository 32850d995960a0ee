// SPDX-License-Identifier: MIT
// Answers questions from tables with the Node guard: JSON lines {tables, counting, once, questions} in, verdicts out.
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const { Answers } = createRequire(import.meta.url)('../../src/agentbox/guest/node/policy.cjs');

for await (const line of createInterface({ input: process.stdin })) {
  const { tables, counting, once, questions } = JSON.parse(line);
  const answers = new Answers(tables, counting);
  for (const identity of once) answers.expectOnce(identity);
  const found = questions.map(([verb, ...arguments_]) => {
    const { allowed, rule } = answers[verb](...arguments_);
    return [allowed, rule ? rule.line : null];
  });
  console.log(JSON.stringify(found));
}
