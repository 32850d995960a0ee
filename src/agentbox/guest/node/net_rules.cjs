// SPDX-License-Identifier: MIT
// How `net: TARGET [@N/min]` is read: a name, a pattern, an address, a network, a UNIX socket.
'use strict';

const { address, name, network } = require('./addresses.cjs');
const { tokens } = require('./glob.cjs');
const { pathTarget } = require('./paths.cjs');
const { Value } = require('./text.cjs');

const MAX_NAME = 253;
const MAX_RATE = 10_000;
const UNIT_SECONDS = { s: 1, min: 60, h: 3600, day: 86400 };
const SCHEME = /^[A-Za-z][A-Za-z0-9+.-]*:\/\//;
const PATTERN_CHARACTERS = /^[A-Za-z0-9._*?[\]!-]+$/;
const ADDRESS_PATTERN = /^[0-9.*?]*[0-9][0-9.*?]*$/;
const NON_ASCII = /[^\0-\x7f]/;
const ENDS_IN_NUMBER = /^(?:[0-9]+|0x[0-9a-f]*)$/i;

// Rows of guest/tables.py.
const row = ({ version, value }) => [version, value.toString(16).padStart(version === 4 ? 8 : 32, '0')];

function readNet(value, surroundings, deny) {
  const { place, rate } = splitRate(value);
  if (deny && rate) value.fail('bad_rate', "a rate has no meaning after 'deny: net'", 'leave the rate out', place.text.length);
  return { target: place.text.startsWith('unix:') ? unix(place, surroundings, rate) : host(place, rate) };
}

function splitRate(value) {
  const { text } = value;
  const at = Math.max(text.lastIndexOf(' @'), text.lastIndexOf('\t@'));
  if (at < 0) return { place: value, rate: null };
  const amount = /^([0-9]{1,5})\/(s|min|h|day)$/.exec(text.slice(at + ' @'.length));
  const count = amount ? Number(amount[1]) : 0;
  if (count < 1 || count > MAX_RATE) {
    value.fail('bad_rate', `@${text.slice(at + ' @'.length)} is no rate`,
      `for example @10/min; units are s, min, h, day, at most ${MAX_RATE}`, at + ' @'.length);
  }
  const place = new Value(text.slice(0, at).replace(/[ \t]+$/, ''), value.place);
  return { place, rate: [count, UNIT_SECONDS[amount[2]]] };
}

function unix(value, surroundings, rate) {
  const text = value.text.slice('unix:'.length);
  if (!text || text === '@') value.fail('bad_host', 'unix: names no socket', 'write unix:/path/to.sock');
  if (text === '*') return ['unix', null, [], true, rate];
  if (text[0] === '@') return ['unix', null, tokens(text.slice(1), true), false, rate];
  return ['unix', pathTarget(new Value(text, value.place), surroundings).target, [], false, rate];
}

const hostRow = ({ named = '', pattern = [], any = false, addressPattern = false, at = null, within = null }, port, rate) => (
  ['host', named, pattern, any, addressPattern, at && row(at), within && [...row(within), within.prefix], port, rate]);

function host(value, rate) {
  const { text } = value;
  const bad = (reason, hint, offset) => value.fail('bad_host', reason, hint, offset);
  if (SCHEME.test(text)) bad(`'${text}' is a URL, not a host`, 'write the host alone, with :PORT if wanted');
  for (const [sign, what] of [['@', 'a user name'], [' ', 'white space'], ['\t', 'white space'], ['#', 'a fragment']]) {
    if (text.includes(sign)) bad(`a host has ${what} in it: '${text}'`, 'write the host alone', text.indexOf(sign));
  }
  if (text.startsWith('cidr/')) return networkRow(value, rate);
  if (text.includes('/')) bad(`a host has no '/': '${text}'`, 'write cidr/ before a network, a host without a path', text.indexOf('/'));
  const { part, port } = splitPort(value);
  const at = address(part);
  return at ? hostRow({ at }, port, rate) : named(value, part, port, rate);
}

function named(value, given, port, rate) {
  const bad = (reason, hint) => value.fail('bad_host', reason, hint);
  if (given === '*') return hostRow({ any: true }, port, rate);
  if (NON_ASCII.test(given)) bad(`'${given}' is not ASCII`, 'write the name in its xn-- form');
  const text = given.endsWith('.') ? given.slice(0, -1) : given;
  if (/[*?[]/.test(text)) {
    if (text.length > MAX_NAME || !PATTERN_CHARACTERS.test(text) || text.includes('..') || text[0] === '.') {
      bad(`'${given}' cannot match a host`, 'for example *.example.com');
    }
    return hostRow({ pattern: tokens(text.toLowerCase(), true), addressPattern: ADDRESS_PATTERN.test(text) }, port, rate);
  }
  const normal = name(text);
  if (normal === null) {
    if (ENDS_IN_NUMBER.test(text.slice(text.lastIndexOf('.') + 1))) {
      bad(`'${given}' is no address`, 'write an IPv4 address as four numbers from 0 to 255');
    }
    bad(`'${given}' is no host name`, "letters, digits, '-' and '.'; for example api.example.com");
  }
  return hostRow({ named: normal }, port, rate);
}

function networkRow(value, rate) {
  let text = value.text.slice('cidr/'.length);
  let port = null;
  const bracket = text.indexOf(']');
  if (text[0] === '[') {
    const after = bracket < 0 ? '' : text.slice(bracket + 1);
    text = bracket < 0 ? text.slice(1) : text.slice(1, bracket);
    if (after) port = portOf(value, after[0] === ':' ? after.slice(1) : '');
  } else if (text.split(':').length === 2) {
    const [before, after] = text.split(':');
    text = before;
    port = portOf(value, after);
  }
  const within = network(text);
  if (!within) value.fail('bad_cidr', `'${text}' is no network`, 'for example cidr/10.0.0.0/8', 'cidr/'.length);
  return hostRow({ within }, port, rate);
}

// Host and port of `host`, `host:port`, `address`, `[address]` or `[address]:port`.
function splitPort(value) {
  const { text } = value;
  const bad = (hint, offset) => value.fail('bad_host', `'${text}' is no address`, hint, offset);
  const bracket = text.indexOf(']');
  if (text[0] === '[' && (bracket < 0 ? text : text.slice(0, bracket)).includes(':')) {
    const part = text.slice(0, bracket + 1);
    if (bracket < 0 || !address(part)) bad('for example [::1]:443', 1);
    const after = text.slice(bracket + 1);
    return { part, port: after ? portOf(value, after[0] === ':' ? after.slice(1) : '') : null };
  }
  const pieces = text.split(':');
  if (pieces.length > 2) {
    if (!address(text)) bad('write an IPv6 address with a port as [::1]:443');
    return { part: text, port: null };
  }
  if (!pieces[0]) value.fail('bad_host', 'there is no host before the port', 'write * for any host');
  return { part: pieces[0], port: pieces.length === 2 ? portOf(value, pieces[1]) : null };
}

// The number of a port; an error points at it.
function portOf(value, text) {
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > 65535) {
    value.fail('bad_port', `'${text}' is no port`, 'write a number from 1 to 65535, or leave the port out for any',
      text ? value.text.lastIndexOf(text) : value.text.length - 1);
  }
  return port;
}

module.exports = { readNet };
