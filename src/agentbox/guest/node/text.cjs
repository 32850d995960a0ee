// SPDX-License-Identifier: MIT
// The text of a policy as lines and segments: characters that may stand there, comments, commas. The meaning is that of
// agentbox.policy.text, and spec/policy/vectors hold both to it. Columns count code points from 1.
'use strict';

const MAX_TEXT_CHARACTERS = 1 << 20;
const MAX_SHOWN = 300;
// Control characters but tab, marks that reorder or hide text, and halves of surrogate pairs: nowhere in a policy.
const FORBIDDEN = new RegExp('[\\0-\\x08\\n-\\x1f\\x7f-\\x9f\\u200b\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2060-\\u2064'
  + '\\u2066-\\u206f\\ufeff\\ud800-\\udfff]', 'u');
// White space that looks like a space and is none: not in a rule.
const OTHER_SPACE = /[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]/u;
const COMMENT = /(?:^|(?<=[ \t]))#/;

const strip = (text) => text.replace(/^[ \t]+|[ \t]+$/g, '');
const cut = (text) => (text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN - 3)}...`);

// How many code points a text has.
function characters(text) {
  let count = text.length;
  for (let at = 0; at + 1 < text.length; at++) {
    if ((text.charCodeAt(at) & 0xfc00) === 0xd800 && (text.charCodeAt(at + 1) & 0xfc00) === 0xdc00) count--;
  }
  return count;
}

class PolicySyntaxError extends Error {
  constructor(problem, reason, hint, place) {
    super(`${place.path}:${place.line}:${place.column}: ${cut(reason)}`);
    Object.assign(this, { name: 'PolicySyntaxError', problem, hint: cut(hint) }, place);
  }
}

// A value in the text: its characters, and the file, line and column where they stand.
class Value {
  constructor(text, place) {
    this.text = text;
    this.place = place;
  }

  // Throw an error that points `offset` UTF-16 units into the value.
  fail(problem, reason, hint, offset = 0) {
    const column = this.place.column + characters(this.text.slice(0, offset));
    throw new PolicySyntaxError(problem, reason, hint, { ...this.place, column });
  }

  // What stands after the first `offset` units, without the white space before it.
  after(offset) {
    const rest = this.text.slice(offset).replace(/^[ \t]+/, '');
    const column = this.place.column + characters(this.text.slice(0, this.text.length - rest.length));
    return new Value(rest, { ...this.place, column });
  }

  // The first word and what stands after it.
  firstWord() {
    const [word] = this.text.split(/[ \t]/, 1);
    return [word, this.after(word.length)];
  }
}

// The text of a file: bytes, or a string that was decoded already.
function decode(content, path) {
  const text = typeof content === 'string' ? content : decoded(content, path);
  const place = { path, line: 1, column: 1 };
  if (text[0] === '\ufeff') {
    throw new PolicySyntaxError('byte_order_mark', 'the file begins with a byte order mark', 'save it as UTF-8 without BOM', place);
  }
  if (characters(text) > MAX_TEXT_CHARACTERS) {
    throw new PolicySyntaxError('too_long', `the policy has more than ${MAX_TEXT_CHARACTERS} characters`, 'split it by include:', place);
  }
  return text;
}

const utf8 = (bytes) => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);

function decoded(content, path) {
  try {
    return utf8(content);
  } catch {
    const end = firstBadByte(content);
    const before = utf8(content.subarray(0, end)).split('\n');
    const place = { path, line: before.length, column: characters(before[before.length - 1]) + 1 };
    throw new PolicySyntaxError('not_utf8', `byte 0x${content[end].toString(16).padStart(2, '0')} is not UTF-8`,
      'save the file as UTF-8', place);
  }
}

// A decoder says that something is wrong, not where.
function firstBadByte(content) {
  let at = 0;
  while (at < content.length) {
    const size = [1, 2, 3, 4].find((length) => {
      try {
        return at + length <= content.length && utf8(content.subarray(at, at + length));
      } catch {
        return false;
      }
    });
    if (!size) break;
    at += size;
  }
  return at;
}

// The lines of a policy, each the list of its segments; null for a blank one.
function* lines(text, path) {
  let line = 0;
  for (const source of text.split('\n')) {
    line++;
    yield segments(source.endsWith('\r') ? source.slice(0, -1) : source, { path, line });
  }
}

function segments(source, place) {
  const bad = FORBIDDEN.exec(source);
  if (bad) failOn(bad, place, source);
  const comment = COMMENT.exec(source);
  const text = comment ? source.slice(0, comment.index) : source;
  const space = OTHER_SPACE.exec(text);
  if (space) failOn(space, place, source);
  if (!strip(text)) return null;
  const found = [];
  let start = 0;
  for (const part of text.split(',')) {
    const left = part.replace(/^[ \t]+/, '');
    const column = characters(text.slice(0, start + part.length - left.length)) + 1;
    if (left) found.push(new Value(strip(left), { ...place, column }));
    start += part.length + 1;
  }
  return found;
}

function failOn(found, place, source) {
  const at = { ...place, column: characters(source.slice(0, found.index)) + 1 };
  if (found[0] === '\r') {
    throw new PolicySyntaxError('bare_cr', 'a carriage return within a line', 'end lines with LF or CRLF', at);
  }
  const code = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
  throw new PolicySyntaxError('bad_character', `the character U+${code} may not stand here`,
    'remove it; in a path, `?` stands for any one character', at);
}

module.exports = { PolicySyntaxError, Value, characters, decode, lines, strip };
