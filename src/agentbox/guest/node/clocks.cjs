// SPDX-License-Identifier: MIT
// The clocks that a program reads. The runtime's own JavaScript keeps functions of its own, taken before these; what is
// bundled with it and reads the clocks of programs is let through by its file's name.
'use strict';

const { performance } = require('node:perf_hooks');

const { dressed } = require('./dressing.cjs');
const stopwatch = require('./stopwatch.cjs');

const RealDate = Date;
const RUNTIME = /^node:internal\/(?:deps|perf)\//;
// Before this version the runtime's own measurements call process.hrtime as programs do.
const SINCE = 20;

// A function that tells whether the caller of a replaced function is JavaScript of the runtime's own. Only what is
// bundled (the client below `fetch`) uses such functions, so that no stack is looked at before it is loaded.
function callerIsRuntime() {
  const { captureStackTrace } = Error;
  const loaded = process.moduleLoadList;
  let known = 0;
  let bundled = parseInt(process.versions.node, 10) < SINCE;
  return () => {
    if (!bundled) {
      if (!Array.isArray(loaded) || loaded.length === known) return false;
      for (; known < loaded.length; known++) bundled ||= String(loaded[known]).includes('internal/deps/undici');
      if (!bundled) return false;
    }
    const { prepareStackTrace, stackTraceLimit } = Error;
    const holder = {};
    try {
      Error.stackTraceLimit = 3;
      Error.prepareStackTrace = (_, frames) => frames;
      captureStackTrace(holder);
      // This function, the replaced one, its caller.
      return Array.isArray(holder.stack) && RUNTIME.test(holder.stack[2]?.getFileName() ?? '');
    } catch {
      return false;
    } finally {
      Object.assign(Error, { prepareStackTrace, stackTraceLimit });
    }
  };
}

// Replace the clocks with those of a tape.
function install(tape, isOwn) {
  const { now } = RealDate;
  const instant = () => tape.call('Date.now', now);

  function AnyDate(...given) {
    if (isOwn()) return new.target ? Reflect.construct(RealDate, given, new.target) : RealDate();
    if (!new.target) return new RealDate(instant()).toString();
    return Reflect.construct(RealDate, given.length ? given : [instant()], new.target);
  }
  AnyDate.prototype = RealDate.prototype;
  Object.defineProperty(AnyDate, 'prototype', { writable: false });
  dressed(AnyDate, RealDate);
  const define = (holder, name, value) => Object.defineProperty(holder, name,
    { ...Object.getOwnPropertyDescriptor(holder, name), value });
  define(AnyDate, 'now', dressed(() => (isOwn() ? now() : instant()), now));
  define(RealDate.prototype, 'constructor', AnyDate);
  define(globalThis, 'Date', AnyDate);
  installFormats(instant);

  const { hrtime, uptime } = process;
  const nanoseconds = () => BigInt(tape.call('process.hrtime', () => String(hrtime.bigint())));
  process.hrtime = dressed((before) => {
    if (isOwn() || before !== undefined && !Array.isArray(before)) return hrtime(before);
    const [seconds, rest] = before ?? [0, 0];
    const found = nanoseconds() - BigInt(Math.trunc(seconds) || 0) * 1_000_000_000n - BigInt(Math.trunc(rest) || 0);
    // As the real one does it: the second number is never negative.
    const below = ((found % 1_000_000_000n) + 1_000_000_000n) % 1_000_000_000n;
    return [Number((found - below) / 1_000_000_000n), Number(below)];
  }, hrtime);
  process.hrtime.bigint = dressed(() => (isOwn() ? hrtime.bigint() : nanoseconds()), hrtime.bigint);
  process.uptime = dressed(() => (isOwn() ? uptime() : tape.call('process.uptime', uptime)), uptime);
  installPerformance(tape, isOwn);
  stopwatch.install(() => tape.call('console.time', () => Number(hrtime.bigint()) / 1e6));
}

function installPerformance(tape, isOwn) {
  let holder = performance;
  while (holder && !Object.hasOwn(holder, 'now')) holder = Object.getPrototypeOf(holder);
  if (!holder) return;
  const { now, mark, measure } = holder;
  const real = () => now.call(performance);
  const instant = () => tape.call('performance.now', real);
  const put = (name, function_) => Object.defineProperty(holder, name,
    { ...Object.getOwnPropertyDescriptor(holder, name), value: dressed(function_, holder[name]) });
  put('now', function () { return this === performance && !isOwn() ? instant() : now.call(this); });
  put('mark', function (name, options) {
    if (this !== performance || isOwn() || options?.startTime !== undefined) return mark.call(this, name, options);
    return mark.call(this, name, { ...options, startTime: instant() });
  });
  // Without an end it is now; with an object, only where that leaves it open.
  put('measure', function (name, first, end) {
    if (this !== performance || isOwn() || end !== undefined) return measure.call(this, name, first, end);
    if (first !== null && typeof first === 'object') {
      const isOpen = first.end === undefined && first.duration === undefined && Object.keys(first).length > 0;
      return measure.call(this, name, isOpen ? { ...first, end: instant() } : first);
    }
    return measure.call(this, name, { start: first, end: instant() });
  });
  const origin = Object.getOwnPropertyDescriptor(holder, 'timeOrigin');
  if (origin?.get && origin.configurable) {
    let kept;
    Object.defineProperty(holder, 'timeOrigin', {
      ...origin,
      get: dressed(function () {
        if (this !== performance || isOwn()) return origin.get.call(this);
        return kept ??= tape.call('performance.timeOrigin', () => origin.get.call(performance));
      }, origin.get),
    });
  } else if (origin?.configurable && 'value' in origin) {
    let kept;
    const get = () => kept ??= tape.call('performance.timeOrigin', () => origin.value);
    Object.defineProperty(holder, 'timeOrigin', { get, enumerable: origin.enumerable, configurable: true });
  }
}

// A format of dates that is given none takes now.
function installFormats(instant) {
  const { prototype } = Intl.DateTimeFormat;
  const { formatToParts } = prototype;
  prototype.formatToParts = dressed(function (date = instant()) { return formatToParts.call(this, date); }, formatToParts);
  const { get } = Object.getOwnPropertyDescriptor(prototype, 'format');
  const bound = new WeakMap();
  Object.defineProperty(prototype, 'format', {
    ...Object.getOwnPropertyDescriptor(prototype, 'format'),
    get: dressed(function () {
      const real = get.call(this);
      if (!bound.has(this)) bound.set(this, dressed((date = instant()) => real(date), real));
      return bound.get(this);
    }, get),
  });
}

module.exports = { callerIsRuntime, install };
