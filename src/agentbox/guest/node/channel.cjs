// SPDX-License-Identifier: MIT
// The guard's end of the channel to the host: synchronous, over a socket whose descriptor is written to.
'use strict';

const fs = require('node:fs');
const net = require('node:net');

const { FrameError, encode } = require('./frames.cjs');

const { writeSync, readSync } = fs;
const { connect } = net.Socket.prototype;
const { Socket } = net;
const { parse } = JSON;
const pause = new Int32Array(new SharedArrayBuffer(4));
const SPINS = 200;

// One thread's connection, made at its first effect. `ahead` is called before each frame of the thread's own lane and
// sends what must come before it; `at` gives where the program stands, in a replay. `lane` is the one of what happens now.
class Channel {
  constructor(path, lane) {
    this.path = path;
    this.own = lane;
    this.lane = lane;
    this.number = 0;
    this.socket = null;
    this.ahead = null;
    this.at = null;
  }

  // Tell the host, and wait for nothing. `lane` and `result` may be given; `expected` is what it must be anyhow.
  send(kind, op, args, { lane = this.lane, result, expected = false } = {}) {
    try {
      this.before(lane);
      const at = this.at && kind !== 'keep' ? this.at(kind === 'deny' ? '' : lane, expected) : undefined;
      this.write(encode({ id: 0, kind, op, args, lane, result, at }));
    } catch {
      // A host that is gone is no reason to stop what needs no answer.
      this.drop();
    }
  }

  // The host's answer; throws when there is none: then nothing that must be recorded may happen. `ahead` asks in a replay
  // for what comes next, too.
  ask(kind, op, args, { lane = this.lane, result, ahead = false } = {}) {
    const id = ++this.number;
    try {
      this.before(lane);
      const at = this.at ? this.at(lane) : undefined;
      this.write(encode({ id, kind, op, args, lane, result, ack: true, at: ahead ? { ...at, ahead } : at }));
      const answer = parse(this.read(this.read(4).readUInt32LE(0)).toString('utf8'));
      if (answer.id !== id) throw new FrameError('fields');
      return answer;
    } catch (error) {
      this.drop();
      throw error;
    }
  }

  before(lane) {
    if (this.ahead && lane === this.own) this.ahead();
  }

  // Do something whose observations belong to a lane.
  within(lane, act) {
    const { lane: before } = this;
    this.lane = lane;
    try {
      return act();
    } finally {
      this.lane = before;
    }
  }

  descriptor() {
    if (this.socket === null) {
      const socket = new Socket();
      socket.on('error', () => {});
      connect.call(socket, { path: this.path });
      const handle = socket._handle;
      if (!handle || handle.fd < 0) throw new FrameError('channel');
      socket.pause();
      socket.unref();
      this.socket = socket;
      this.handle = handle;
    }
    return this.handle.fd;
  }

  drop() {
    const { socket } = this;
    this.socket = null;
    try {
      socket?.destroy();
    } catch {
      // It was closed by the program.
    }
  }

  write(frame) {
    const descriptor = this.descriptor();
    for (let at = 0; at < frame.length;) {
      try {
        at += writeSync(descriptor, frame, at);
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        Atomics.wait(pause, 0, 0, 1);
      }
    }
  }

  read(count) {
    const data = Buffer.alloc(count);
    let spins = 0;
    for (let at = 0; at < count;) {
      try {
        const more = readSync(this.handle.fd, data, at, count - at, null);
        if (more === 0) throw new FrameError('closed');
        at += more;
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
        if (++spins > SPINS) Atomics.wait(pause, 0, 0, 0.2);
      }
    }
    return data;
  }
}

module.exports = { Channel };
