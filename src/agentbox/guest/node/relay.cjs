// SPDX-License-Identifier: MIT
// Programs that are waited for and write to this process's own output: what they write passes through a thread that keeps
// it, so that a replay can write it again.
'use strict';

const { randomBytes } = require('node:crypto');
const fs = require('node:fs');
const net = require('node:net');
const { tmpdir } = require('node:os');
const { MessageChannel, Worker, receiveMessageOnPort } = require('node:worker_threads');

const { MAX_KEPT } = require('./values.cjs');

const { Socket } = net;
const { connect } = net.Socket.prototype;
const { writeSync } = fs;
const MAX_WAIT_MS = 10_000;
const directory = tmpdir();
let relay = null;

class Relay {
  constructor() {
    const { port1, port2 } = new MessageChannel();
    this.port = port1;
    this.state = new Int32Array(new SharedArrayBuffer(8));
    this.token = randomBytes(24);
    this.path = `${directory}/.agentbox-relay-${randomBytes(8).toString('hex')}`;
    const workerData = { most: MAX_KEPT, path: this.path, port: port2, state: this.state, token: this.token };
    // Without the environment it loads no guard, whose place in the order of threads is for the program's own.
    const thread = new Worker(`${__dirname}/relay_thread.cjs`, { workerData, transferList: [port2], env: {}, execArgv: [], stdin: false });
    thread.on('error', () => {});
    thread.unref();
    port1.unref();
    this.told = 0;
    this.wait();
  }

  // Until the thread has told of one thing more.
  wait() {
    const { told } = this;
    if (Atomics.load(this.state, 0) <= told && Atomics.wait(this.state, 0, told, MAX_WAIT_MS) === 'timed-out') {
      throw new Error('agentbox: the output of a program cannot be recorded: its thread does not answer');
    }
    this.told++;
  }

  // A descriptor in place of `fd`, and what gives everything that was written to it when its program has ended; null when
  // that is more than is kept.
  open(fd) {
    const socket = new Socket();
    socket.on('error', () => {});
    connect.call(socket, { path: this.path });
    const { _handle: handle } = socket;
    if (!handle || handle.fd < 0) throw new Error('agentbox: the output of a program cannot be recorded');
    socket.pause();
    socket.unref();
    // What shares it waits where it is full, as it does everywhere.
    handle.setBlocking?.(true);
    writeSync(handle.fd, Buffer.of(fd));
    return {
      fd: handle.fd,
      finish: () => {
        writeSync(handle.fd, this.token);
        socket.destroy();
        this.wait();
        const { message } = receiveMessageOnPort(this.port);
        return message && Buffer.from(message);
      },
    };
  }
}

// One that stands in for this process's own output, by its number. Throws when there can be none.
function standIn(fd) {
  relay ??= new Relay();
  return relay.open(fd);
}

module.exports = { standIn };
