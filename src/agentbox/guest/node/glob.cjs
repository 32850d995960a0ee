// SPDX-License-Identifier: MIT
// Wildcards as tokens of single characters, as guest/tables.py writes them: a character, 1 for `?`, 2 for `*`, or a
// class [negated, [[low, high], ...]].
'use strict';

const ANY = 1;
const RUN = 2;

const isPattern = (text, classes = false) => text.includes('*') || text.includes('?')
  || (classes && text.includes('[') && text.includes(']'));

function tokens(pattern, classes = false) {
  const all = Array.from(pattern);
  const found = [];
  for (let at = 0; at < all.length;) {
    const character = all[at++];
    const parsed = classes && character === '[' ? characterClass(all, at) : null;
    if (parsed) {
      found.push(parsed.token);
      at = parsed.end;
    } else if (character === '?') {
      found.push(ANY);
    } else if (character !== '*') {
      found.push(character);
    } else if (found[found.length - 1] !== RUN) {
      found.push(RUN);
    }
  }
  return found;
}

// The class whose `[` stands before `at`, and where it ends; null when it has no `]`.
function characterClass(all, at) {
  const negated = all[at] === '!';
  const first = at + (negated ? 1 : 0);
  // A `]` directly after `[` or `[!` is a member.
  const end = all.indexOf(']', first + 1);
  if (end < 0) return null;
  const members = all.slice(first, end);
  const ranges = [];
  for (let at_ = 0; at_ < members.length;) {
    if (members[at_ + 1] === '-' && at_ + 2 < members.length) {
      ranges.push([members[at_], members[at_ + 2]]);
      at_ += 3;
    } else {
      ranges.push([members[at_], members[at_]]);
      at_ += 1;
    }
  }
  return { token: [negated, ranges], end: end + 1 };
}

module.exports = { isPattern, tokens };
