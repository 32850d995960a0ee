// SPDX-License-Identifier: MIT
// What of a request is recorded: no password, no token, but enough to know the same request again. As guard/redaction.py.
'use strict';

const HIDDEN = '***';
const PARTS = ['token', 'secret', 'passw', 'pwd', 'auth', 'apikey', 'signature', 'credential', 'session', 'cookie', 'jwt'];
const WORDS = new Set(['key', 'sig', 'pass', 'pin', 'otp']);

// Whether what has this name is likely a secret: a header, or a parameter of an address.
function isSecret(name) {
  const words = name.toLowerCase().replaceAll('-', '_').split('_');
  const joined = words.join('');
  return PARTS.some((part) => joined.includes(part)) || words.some((word) => WORDS.has(word));
}

// Headers, with secrets hidden.
const redactedHeaders = (given) => Object.fromEntries(
  Object.entries(given).map(([name, value]) => [name, isSecret(name) ? HIDDEN : value]));

function parameter(text) {
  const at = text.indexOf('=');
  return at >= 0 && isSecret(text.slice(0, at)) ? `${text.slice(0, at)}=${HIDDEN}` : text;
}

const parameters = (text) => text.split('&').map(parameter).join('&');

// An address without the password before its host, and without secrets among its parameters.
function redactedUrl(given) {
  const [, before, hash] = /^([^#]*)(?:#(.*))?$/s.exec(given);
  const [, place, query] = /^([^?]*)(?:\?(.*))?$/s.exec(before);
  const open = place.replace(/^([^:/]*:\/\/)([^/]*)@/, (text, scheme, user) => (user ? `${scheme}${HIDDEN}@` : text));
  return open + (query === undefined ? '' : `?${parameters(query)}`) + (hash === undefined ? '' : `#${parameters(hash)}`);
}

module.exports = { isSecret, redactedHeaders, redactedUrl };
