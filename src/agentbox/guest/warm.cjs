// SPDX-License-Identifier: MIT
// A warm Node: the program that a Node in stock runs in place of a guest's (isolation/pool/node_box.py).
//
// It goes once through what a program's first steps load, then blocks until its owner says with which arguments and
// variables to run; from there on it is `node main.js`, by the same way through the module loader that Node's own main
// script takes. What differs from a new Node is in docs/guide/warm-pool.md. CommonJS, any Node from 16 on.
'use strict'

const fs = require('fs')
const Module = require('module')
const path = require('path')

// Pipes: from the owner and to the owner.
const HEARD = 3
const SAID = 4
// As native/box.h has it: op and id of 32 bits, four numbers of 64.
const HEAD = 40
const ROOM = 64 * 1024
const KILLED_MS = 10000
// What programs use first. Names that a version of Node does not have are passed over.
const LOADED = [
  'assert', 'async_hooks', 'child_process', 'crypto', 'events', 'fs/promises', 'http', 'net', 'os', 'perf_hooks',
  'readline', 'stream', 'stream/promises', 'string_decoder', 'timers/promises', 'tty', 'url', 'util', 'vm',
  'worker_threads', 'zlib',
]
const { fstatSync, writeSync } = fs
const { reallyExit } = process
const { wait } = Atomics

function message(op, number) {
  const head = Buffer.alloc(HEAD)
  head.writeUInt32LE(op.charCodeAt(0), 0)
  head.writeInt32LE(number, 8)
  return head
}

// Without the process's own streams: what only looks at one would make it, and with it change the mode of a pipe that a
// program may never use by a stream.
function aside(work) {
  const streams = ['stdin', 'stdout', 'stderr'].map((name) => [name, Object.getOwnPropertyDescriptor(process, name)])
  for (const [name, { enumerable }] of streams) {
    Object.defineProperty(process, name, { configurable: true, enumerable, value: undefined })
  }
  try {
    work()
  } catch {
  } finally {
    for (const [name, descriptor] of streams) Object.defineProperty(process, name, descriptor)
  }
}

function load() {
  for (const name of LOADED) {
    try {
      require(name)
    } catch {}
  }
}

// The first line that a process prints, the first error that it shows and the first timer take longest.
function rehearse() {
  // Its threads are counted when this waits, and are no sign of a program's work then.
  fs.access('/', () => {})
  const { Console } = require('console')
  const { Writable } = require('stream')
  const nothing = new Writable({ write: (chunk, encoding, done) => done() })
  const out = new Console(nothing)
  class Shown {
    constructor() {
      this.list = [1, 'two', { three: null }]
    }
  }
  for (const thing of ['%s %d', new Shown(), new Map([[1, new Set([2])]]), new Error('shown'), Promise.resolve(), rehearse]) {
    out.log(thing, 1)
    out.error(`${thing}`)
  }
  out.table([{ a: 1 }])
  clearTimeout(setTimeout(rehearse, 1))
  clearImmediate(setImmediate(rehearse))
  require('vm').runInThisContext('(async () => { for (const one of [1]) await one })')()
}

// Make the streams, but leave the pipes as they are until the program asks for one: a stream changes the mode of its
// pipe for everyone who has it.
function stream(name) {
  const descriptor = Object.getOwnPropertyDescriptor(process, name)
  const made = process[name]
  made.write('')
  made._handle.setBlocking(true)
  Object.defineProperty(process, name, {
    ...descriptor,
    get() {
      Object.defineProperty(process, name, descriptor)
      made._handle.setBlocking(false)
      return made
    },
  })
}

function told() {
  const text = Buffer.allocUnsafeSlow(ROOM)
  writeSync(SAID, message('r', Number(fs.readFileSync('/proc/loadavg', 'latin1').split(' ').pop()) - 1))
  let length = 0
  while (length < HEAD || length < HEAD + text.readInt32LE(24)) {
    try {
      const got = fs.readSync(HEARD, text, length, ROOM - length, null)
      // Nobody is there any more who could say anything.
      if (got === 0) reallyExit(0)
      length += got
    } catch (error) {
      if (error.code !== 'EINTR') throw error
    }
  }
  fs.closeSync(HEARD)
  const count = text.readInt32LE(8)
  const words = text.toString('utf8', HEAD, length).split('\0')
  return { argv: words.slice(0, count), env: words.slice(count, count + text.readInt32LE(16)) }
}

// The owner need not wait until an engine with all its memory is taken apart: it is told as soon as nothing of the
// program is left to run or to be written, and then kills the box. Where that is not sure, nothing is said, and the end
// itself tells.
function tellTheEnd() {
  const { ino } = fstatSync(SAID)
  const nobody = new Int32Array(new SharedArrayBuffer(4))
  const tell = (code) => {
    try {
      // The program may have closed it, and something else may have its number.
      const found = fstatSync(SAID)
      if (!found.isFIFO() || found.ino !== ino) return
      writeSync(SAID, message('x', code))
      // What is killed need not take itself apart.
      wait(nobody, 0, 0, KILLED_MS)
    } catch {}
  }
  const native = () => Object.keys(Module._cache).some((name) => name.endsWith('.node'))
  const exit = function reallyExit(code) {
    if (!native()) tell(code)
    Reflect.apply(realExit, process, [code])
  }
  const realExit = reallyExit
  process.reallyExit = exit
  const { emit } = Object.getPrototypeOf(Object.getPrototypeOf(process))
  let asked = false
  // Node asks for `emit` when there is nothing left to do, and before anyone else does who listens then. With 1 it may
  // also be about to show an error.
  Object.defineProperty(process, 'emit', {
    configurable: true,
    enumerable: false,
    get() {
      if (asked || process._exiting !== true) return emit
      asked = true
      const code = process.exitCode === undefined ? 0 : process.exitCode
      if (
        process.reallyExit === exit &&
        process.listenerCount('exit') === 0 &&
        Number.isInteger(code) &&
        code !== 1 &&
        !native()
      ) {
        tell(code)
      }
      return emit
    },
    set(value) {
      Object.defineProperty(process, 'emit', { configurable: true, enumerable: true, writable: true, value })
    },
  })
}

function become({ argv, env }) {
  const home = process.env.HOME
  for (const word of env) {
    const at = word.indexOf('=')
    process.env[word.slice(0, at)] = word.slice(at + 1)
  }
  if (process.env.HOME !== home) Module._initPaths()
  const main = path.join(path.dirname(__filename), 'main.js')
  process.argv[1] = main
  process.argv.push(...argv)
  delete Module._cache[__filename]
  for (const key of Object.keys(Module._pathCache)) {
    if (Module._pathCache[key] === __filename) delete Module._pathCache[key]
  }
  process.mainModule = undefined
  delete process.mainModule
  return main
}

function begin() {
  const main = become(told())
  tellTheEnd()
  // Not from here, or the functions of this file would stand in every error that the program shows.
  process.nextTick(Module.runMain.bind(Module), main)
  ;/^/.exec('')
}

aside(load)
aside(rehearse)
try {
  stream('stdout')
  stream('stderr')
} catch {}
// Before the event loop begins, as a program does: what is waited for here comes without it.
import('data:text/javascript,').then(
  () => process.nextTick(begin),
  () => process.nextTick(begin),
)
