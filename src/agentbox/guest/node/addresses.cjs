// SPDX-License-Identifier: MIT
// Host names and addresses in one spelling. An address is {version, value}; IPv4 in IPv6 form is the IPv4 address.
'use strict';

const { isIPv4, isIPv6 } = require('node:net');

const NAME = /^[a-z0-9_-]{1,63}$/;
// ::ffff:0:0/96: an IPv4 address in IPv6 form.
const MAPPED = 0xffffn;

// The address that a text is in its usual spelling, else null; brackets around an IPv6 address and a zone are left out.
function address(given) {
  let text = given;
  if (text.startsWith('[') && text.endsWith(']')) {
    text = text.slice(1, -1);
    if (!text.includes(':')) return null;
  }
  const found = spelled(text.includes(':') ? text.split('%', 1)[0] : text);
  if (found?.version === 6 && found.value >> 32n === MAPPED) return { version: 4, value: found.value & 0xffffffffn };
  return found;
}

function spelled(text) {
  if (text.includes(':')) return isIPv6(text) && !text.includes('%') ? { version: 6, value: fromV6(text) } : null;
  if (!isIPv4(text) || text.split('.').some((part) => part.length > 1 && part[0] === '0')) return null;
  return { version: 4, value: fromV4(text) };
}

// The network of `address/prefix`, null for what is none; one of IPv4 addresses in IPv6 form is one of IPv4 addresses.
function network(text) {
  const [given, digits, more] = text.split('/');
  const found = spelled(given);
  const bits = found?.version === 4 ? 32 : 128;
  const prefix = Number(digits);
  if (!found || more !== undefined || !/^[0-9]{1,3}$/.test(digits ?? '') || prefix > bits) return null;
  if (found.value & ((1n << BigInt(bits - prefix)) - 1n)) return null;
  if (found.version === 4 || prefix < 96 || found.value >> 32n !== MAPPED) return { ...found, prefix };
  return { version: 4, value: found.value & 0xffffffffn, prefix: prefix - 96 };
}

const fromV4 = (text) => text.split('.').reduce((value, part) => (value << 8n) | BigInt(part), 0n);

function fromV6(given) {
  let text = given;
  const dotted = /^(.*:)([0-9.]+)$/.exec(text);
  if (dotted && dotted[2].includes('.')) {
    const value = fromV4(dotted[2]);
    text = `${dotted[1]}${(value >> 16n).toString(16)}:${(value & 0xffffn).toString(16)}`;
  }
  const [head, tail] = text.split('::');
  const words = (part) => (part ? part.split(':') : []);
  const first = words(head);
  const last = tail === undefined ? [] : words(tail);
  const missing = tail === undefined ? 0 : 8 - first.length - last.length;
  const all = [...first, ...Array(missing).fill('0'), ...last];
  return all.reduce((value, word) => (value << 16n) | BigInt(`0x${word}`), 0n);
}

// A host name in lower case without its trailing dot; null for what is no name, or ends in a number.
function name(text) {
  let found = text.endsWith('.') ? text.slice(0, -1) : text;
  if (!found || found.length > 253 || /[^\x00-\x7f]/.test(found)) return null;
  found = found.toLowerCase();
  const labels = found.split('.');
  if (!labels.every((label) => NAME.test(label))) return null;
  const last = labels[labels.length - 1];
  return /^\d+$/.test(last) || /^0x[0-9a-f]*$/.test(last) ? null : found;
}

// Name and address of what a program gave as host, one of them; null when it is neither.
function host(given) {
  if (typeof given !== 'string') return null;
  const found = address(given);
  if (found) return { name: '', address: found };
  const normal = name(given);
  return normal === null ? null : { name: normal, address: null };
}

function inNetwork(at, network) {
  const bits = BigInt((at.version === 4 ? 32 : 128) - network.prefix);
  return at.version === network.version && (at.value ^ network.value) >> bits === 0n;
}

function textOf({ version, value }) {
  if (version === 4) return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 255n).join('.');
  const words = [];
  for (let shift = 112n; shift >= 0n; shift -= 16n) words.push(((value >> shift) & 0xffffn).toString(16));
  let best = [0, 0];
  for (let start = 0; start < 8; start++) {
    let end = start;
    while (end < 8 && words[end] === '0') end++;
    if (end - start > 1 && end - start > best[1]) best = [start, end - start];
  }
  if (!best[1]) return words.join(':');
  return `${words.slice(0, best[0]).join(':')}::${words.slice(best[0] + best[1]).join(':')}`;
}

module.exports = { address, host, inNetwork, name, network, textOf };
