// SPDX-License-Identifier: MIT
// Frames of spec/frames: messages as bytes.
'use strict';

const { stringify, parse } = JSON;
const MAX_FRAME_BYTES = 1 << 20;
const MAX_DEPTH = 64;
const KINDS = new Set(['effect', 'observe', 'deny', 'count', 'keep', 'serve']);
const FIELDS = new Set(['id', 'ack', 'kind', 'op', 'args', 'result', 'lane', 'at']);
const OP = /^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$/;

class FrameError extends Error {
  constructor(reason) {
    super(reason);
    this.reason = reason;
  }
}

// The frame of a message: ASCII, so that half a surrogate pair survives.
function encode(message) {
  const text = stringify(message).replace(/[\u0080-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
  if (text.length > MAX_FRAME_BYTES) throw new FrameError('length');
  const frame = Buffer.allocUnsafe(4 + text.length);
  frame.writeUInt32LE(text.length, 0);
  frame.write(text, 4, 'latin1');
  return frame;
}

// Cuts a stream into messages; after an error it refuses everything.
class FrameParser {
  constructor() {
    this.buffer = Buffer.alloc(0);
    this.reason = '';
  }

  feed(data) {
    if (this.reason) throw new FrameError(this.reason);
    this.buffer = Buffer.concat([this.buffer, data]);
    const messages = [];
    try {
      while (this.buffer.length >= 4) {
        const length = this.buffer.readUInt32LE(0);
        if (length === 0 || length > MAX_FRAME_BYTES) throw new FrameError('length');
        if (this.buffer.length < 4 + length) break;
        const body = this.buffer.subarray(4, 4 + length);
        this.buffer = this.buffer.subarray(4 + length);
        messages.push(messageOf(body));
      }
    } catch (error) {
      this.reason = error.reason ?? 'json';
      throw error;
    }
    return messages;
  }

  get isBetweenFrames() { return this.buffer.length === 0; }
}

function messageOf(body) {
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    throw new FrameError('encoding');
  }
  if (/(^|[[,:\s])-?(NaN|Infinity)\b/.test(text.replace(/"(?:[^"\\]|\\.)*"/g, '""'))) throw new FrameError('number');
  let message;
  try {
    message = parse(text);
  } catch (error) {
    throw new FrameError(error instanceof RangeError ? 'depth' : 'json');
  }
  check(text);
  if (message === null || typeof message !== 'object' || Array.isArray(message)) throw new FrameError('object');
  return message;
}

// What JSON.parse lets pass: a key twice, too many levels, numbers of more digits than are read. The text is valid JSON.
function check(text) {
  const levels = [];
  const token = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
  let key = null;
  for (let found = token.exec(text); found; found = token.exec(text)) {
    const [word] = found;
    const level = levels[levels.length - 1];
    if (word === '{' || word === '[') {
      levels.push(word === '{' ? new Set() : null);
      if (levels.length > MAX_DEPTH) throw new FrameError('depth');
    } else if (word === '}' || word === ']') {
      levels.pop();
    } else if (word[0] === '"') {
      key = word;
    } else if (word === ':') {
      const name = parse(key);
      if (level.has(name)) throw new FrameError('duplicate');
      level.add(name);
    } else if (word.length > 4300 && /^-?\d+$/.test(word)) {
      throw new FrameError('number');
    }
  }
}

// Throws unless a message is a request of a guest.
function requestOf(message) {
  const plain = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);
  const { id, ack = false, kind, op, args, lane = null, at = null } = message;
  const right = Object.keys(message).every((name) => FIELDS.has(name))
    && Number.isSafeInteger(id) && id >= 0 && typeof ack === 'boolean' && KINDS.has(kind)
    && ((kind !== 'count' && kind !== 'serve') || ack)
    && typeof op === 'string' && op.length <= 64 && OP.test(op) && plain(args)
    && (lane === null || (typeof lane === 'string' && lane.length <= 64))
    && (at === null || plain(at));
  if (!right) throw new FrameError('fields');
  return { id, ack, kind, op, args, result: message.result, lane, at };
}

module.exports = { FrameError, FrameParser, encode, requestOf };
