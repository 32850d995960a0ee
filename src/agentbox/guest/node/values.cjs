// SPDX-License-Identifier: MIT
// Bytes in frames: short ones in the frame itself, long ones in pieces before it.
'use strict';

const MAX_WITHIN = 16 << 10;
const PIECE_BYTES = 512 << 10;
const MAX_PIECES = 1 << 20;
let keys = 0;

// How a frame of this channel holds some bytes. Long ones are sent at once.
function packed(channel, data) {
  if (data.length <= MAX_WITHIN) return { b64: data.toString('base64') };
  const key = `${channel.lane.slice(0, 40)}#${++keys}`;
  for (let at = 0; at < data.length; at += PIECE_BYTES) {
    channel.send('keep', 'keep.piece', { key, b64: data.toString('base64', at, Math.min(at + PIECE_BYTES, data.length)) });
  }
  return { kept: key };
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

module.exports = { packed, unpacked };
