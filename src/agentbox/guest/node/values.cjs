// SPDX-License-Identifier: MIT
// Bytes in frames: short ones in the frame itself, long ones in pieces before it.
'use strict';

const MAX_WITHIN = 16 << 10;
const MAX_KEPT = 64 << 20;
const PIECE_BYTES = 512 << 10;
const MAX_PIECES = 1 << 20;
let keys = 0;

// Bytes that come piece by piece. Once they are too many for a frame they are handed to the host as they come, so that
// they take no room here; `isWhole` is false when they are more than the host keeps.
class Packing {
  constructor(channel) {
    this.channel = channel;
    this.size = 0;
    this.held = [];
    this.key = '';
  }

  get isWhole() { return this.size <= MAX_KEPT; }

  add(data) {
    this.size += data.length;
    if (!this.isWhole) {
      this.held = [];
      return;
    }
    this.held.push(data);
    if (!this.key && this.size <= MAX_WITHIN) return;
    this.key ||= `${this.channel.lane.slice(0, 40)}#${++keys}`;
    for (const piece of this.held) this.send(piece);
    this.held = [];
  }

  send(data) {
    for (let at = 0; at < data.length; at += PIECE_BYTES) {
      const b64 = data.toString('base64', at, Math.min(at + PIECE_BYTES, data.length));
      this.channel.send('keep', 'keep.piece', { key: this.key, b64 });
    }
  }

  // How a frame that is sent next holds them.
  value() { return this.key ? { kept: this.key } : { b64: Buffer.concat(this.held).toString('base64') }; }
}

// How a frame of this channel that is sent next holds some bytes.
function packed(channel, data) {
  const packing = new Packing(channel);
  packing.add(data);
  return packing.value();
}

// The bytes of a recorded value, asked for where the host has them; null when it is none.
function unpacked(tape, value) {
  if (typeof value?.b64 === 'string') return Buffer.from(value.b64, 'base64');
  if (typeof value?.kept !== 'string') return null;
  const pieces = [];
  let offset = 0;
  for (let left = MAX_PIECES; left; left--) {
    const { b64, end } = tape.ask('serve', 'keep.read', { kept: value.kept, offset });
    const piece = Buffer.from(String(b64), 'base64');
    pieces.push(piece);
    offset += piece.length;
    if (end || !piece.length) break;
  }
  return Buffer.concat(pieces);
}

module.exports = { MAX_KEPT, Packing, packed, unpacked };
