// SPDX-License-Identifier: MIT
// Paths of rules: their text becomes [kind, path, pattern, alias, max_bytes], absolute and resolved.
'use strict';

const { isPattern, tokens } = require('./glob.cjs');

const VARIABLE = /^\$(?:\{|[A-Za-z_])/;
const SCHEME = /^[A-Za-z][A-Za-z0-9+.-]*:\/\//;

// An absolute path without empty parts, `.` and `..`, as if there were no links.
function lexical(path) {
  const parts = [];
  for (const part of path.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '' && part !== '.') parts.push(part);
  }
  return `/${parts.join('/')}`;
}

// `..` stays, because a link may stand before it.
const singleSlashes = (path) => `/${path.split('/').filter((part) => part !== '' && part !== '.').join('/')}`;
const parentOf = (path) => path.slice(0, Math.max(path.lastIndexOf('/'), 0)) || '/';

// The target of a path as a policy file writes it, and its text when it is resolved.
function pathTarget(value, surroundings, maxBytes = null) {
  const parts = absolute(value, surroundings).split('/');
  const first = parts.findIndex((part) => isPattern(part));
  const literal = (first < 0 ? parts : parts.slice(0, first)).join('/') || '/';
  const rest = first < 0 ? [] : parts.slice(first).filter((part) => part !== '' && part !== '.');
  for (const part of rest) {
    if (part === '..') value.fail('bad_glob', "'..' after a wildcard has no meaning", 'write the directory that is meant');
    if (part.includes('**') && part !== '**') {
      value.fail('bad_glob', `'**' must stand alone between slashes, not in '${part}'`,
        '`**` is any number of directories, `*` any characters within one name', Math.max(value.text.indexOf('**'), 0));
    }
  }
  while (rest[rest.length - 1] === '**') rest.pop();
  const resolved = surroundings.resolve(singleSlashes(literal));
  let alias = '';
  if (!rest.length) {
    const plain = lexical(literal);
    const name = plain.slice(plain.lastIndexOf('/') + 1);
    const named = `${surroundings.resolve(parentOf(plain)).replace(/\/+$/, '')}/${name}`;
    if (name && named !== resolved) alias = named;
  }
  const pattern = rest.map((part) => (part === '**' ? '**' : tokens(part)));
  return {
    target: ['path', resolved, pattern, alias, maxBytes],
    text: rest.length ? `${resolved.replace(/\/+$/, '')}/${rest.join('/')}` : resolved,
  };
}

function absolute(value, { root, home }) {
  const { text } = value;
  if (text[0] === '~') {
    if (text !== '~' && !text.startsWith('~/')) {
      value.fail('bad_path', `the home directory of another user, '${text}'`, 'write the path; only ~/ is known');
    }
    if (home === null) value.fail('bad_path', "'~' has no meaning here: there is no home directory", 'write an absolute path');
    return home + text.slice(1);
  }
  if (VARIABLE.test(text)) {
    value.fail('bad_path', 'variables are not expanded', `write ~ or the path; a file of that name is ./${text}`);
  }
  if (SCHEME.test(text)) value.fail('bad_path', `'${text}' is a URL, not a path`, 'write the path without the scheme');
  return text[0] === '/' ? text : `${root}/${text}`;
}

module.exports = { lexical, pathTarget };
