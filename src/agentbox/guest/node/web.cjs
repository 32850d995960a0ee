// SPDX-License-Identifier: MIT
// Requests to web servers for agentbox.get: each address that a redirect leads to is asked about as the first one is.
'use strict';

const { isSecret, redactedUrl } = require('./redaction.cjs');

// Those of the runtime: a recorded run has others for the program.
const { bigint: nanoseconds } = process.hrtime;
const { clearTimeout: clear, setTimeout: after } = globalThis;
const MAX_BODY_BYTES = 64 << 20;
const MAX_REDIRECTS = 10;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const SAME_AGAIN = new Set([307, 308]);
const OF_A_BODY = new Set(['content-length', 'content-type', 'transfer-encoding']);
const without = (headers, isGone) => Object.fromEntries(Object.entries(headers).filter(([name]) => !isGone(name.toLowerCase())));
const originOf = ({ protocol, host }) => `${protocol}//${host}`;

// The modules that are used, when the first request is made: to load them takes longer than all else of the guard.
let clients = null;
function clientOf(protocol) {
  clients ??= { 'http:': require('node:http'), 'https:': require('node:https') };
  return clients[protocol];
}

function addressOf(text, refused) {
  let url;
  try {
    url = new URL(text);
  } catch {
    throw new TypeError(`agentbox.get: ${redactedUrl(String(text))} is no address`);
  }
  if (url.protocol === 'http:' || url.protocol === 'https:') return url;
  refused(redactedUrl(url.href));
  throw new TypeError(`agentbox.get: ${redactedUrl(url.href)} is no http or https address`);
}

// One answer: its status, headers and body. What happens at once is done by `within`.
function exchange(url, { method, headers, body, deadline, seconds, within }) {
  return new Promise((resolve, reject) => {
    const late = () => Object.assign(new Error(`agentbox.get: no whole answer of ${url.host} within ${seconds} s`),
      { name: 'TimeoutError', code: 'ETIMEDOUT' });
    const left = Math.ceil(Number(deadline - nanoseconds()) / 1e6);
    if (left <= 0) {
      reject(late());
      return;
    }
    let timer;
    const fail = (error) => {
      clear(timer);
      reject(error);
    };
    let request;
    try {
      request = within(() => clientOf(url.protocol).request(url, { method, headers, agent: false }));
    } catch (error) {
      fail(error);
      return;
    }
    timer = after(() => request.destroy(late()), left);
    request.on('error', fail);
    request.on('response', (response) => {
      const pieces = [];
      let size = 0;
      response.on('error', fail);
      response.on('data', (piece) => {
        pieces.push(piece);
        size += piece.length;
        if (size > MAX_BODY_BYTES) request.destroy(new RangeError(`agentbox.get: the answer is larger than ${MAX_BODY_BYTES >> 20} MiB`));
      });
      response.on('end', () => {
        clear(timer);
        resolve({ status: response.statusCode, location: response.headers.location, data: Buffer.concat(pieces) });
      });
    });
    within(() => request.end(body));
  });
}

// The answer at the end of all redirects: {status, data}. `refused` is told of an address of another kind than http and
// https; `within` does what is judged: connections. Throws what a connection throws.
async function fetched(text, { method, headers, body, seconds, refused, within }) {
  const deadline = nanoseconds() + BigInt(Math.ceil(seconds * 1e9));
  let given = { 'User-Agent': 'agentbox', ...headers };
  let [verb, data] = [method, body];
  let url = addressOf(text, refused);
  for (let left = MAX_REDIRECTS; ; left--) {
    const answer = await exchange(url, { method: verb, headers: given, body: data, deadline, seconds, within });
    if (!REDIRECTS.has(answer.status) || answer.location === undefined) return answer;
    if (!left) throw new Error(`agentbox.get: ${redactedUrl(text)} redirects more than ${MAX_REDIRECTS} times`);
    if (!SAME_AGAIN.has(answer.status) && verb !== 'HEAD') {
      [verb, data] = ['GET', undefined];
      given = without(given, (name) => OF_A_BODY.has(name));
    }
    const next = addressOf(new URL(answer.location, url).href, refused);
    // What is meant for one server is not for the next.
    if (originOf(next) !== originOf(url)) given = without(given, isSecret);
    url = next;
  }
}

module.exports = { fetched };
