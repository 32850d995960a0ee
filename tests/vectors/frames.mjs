// SPDX-License-Identifier: MIT
// The frames of the Node guard against spec/frames/vectors.json: prints what is wrong, one line each.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { isDeepStrictEqual } from 'node:util';

const require = createRequire(import.meta.url);
const { FrameParser, encode, requestOf } = require('../../src/agentbox/guest/node/frames.cjs');
const { Stream } = require('../../src/agentbox/guest/node/random.cjs');
const vectors = JSON.parse(readFileSync(new URL('../../spec/frames/vectors.json', import.meta.url), 'utf8'));
const feed = (parser, chunks) => chunks.flatMap((chunk) => parser.feed(Buffer.from(chunk, 'hex')));
let count = 0;

function wrong(name, found, expected) {
  console.log(JSON.stringify([name, found, expected]));
}

function reason(run) {
  try {
    run();
    return null;
  } catch (error) {
    return error.reason ?? String(error);
  }
}

for (const { name, chunks, messages, unfinished = false } of vectors.streams) {
  count++;
  const parser = new FrameParser();
  const found = feed(parser, chunks);
  if (!isDeepStrictEqual(found, messages) || parser.isBetweenFrames === unfinished) wrong(name, found, messages);
  for (const message of messages) {
    const again = new FrameParser().feed(encode(message));
    if (!isDeepStrictEqual(again, [message])) wrong(`${name}, encoded`, again, message);
  }
}
for (const { name, chunks, error } of vectors.hostile) {
  count++;
  const parser = new FrameParser();
  const found = reason(() => feed(parser, chunks));
  if (found !== error || reason(() => parser.feed(encode({ id: 1 }))) === null) wrong(name, found, error);
}
for (const { name, message, error = null } of vectors.requests) {
  count++;
  const found = reason(() => requestOf(message));
  if (found !== error) wrong(name, found, error);
}
for (const { name, answer } of vectors.answers) {
  count++;
  const [read] = new FrameParser().feed(encode(answer));
  if (!isDeepStrictEqual(read, answer)) wrong(name, read, answer);
}

for (const { name, seed, lane, sizes, bytes } of vectors.draws) {
  count++;
  const stream = new Stream(Buffer.from(seed, 'hex'), lane);
  const found = sizes.map((size) => stream.bytes(size).toString('hex'));
  if (!isDeepStrictEqual(found, bytes)) wrong(name, found, bytes);
}

console.log(count);
