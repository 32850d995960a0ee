// SPDX-License-Identifier: MIT
// The doors to the network: sockets, datagrams, names, servers. TLS, HTTP and fetch stand on the first.
'use strict';

const dgram = require('node:dgram');
const dns = require('node:dns');
const net = require('node:net');
const { isIP } = net;
const { performance } = require('node:perf_hooks');

const { dressed } = require('./files.cjs');

const seconds = performance.now.bind(performance);

function install(effects) {
  const { answers } = effects;
  const isOwn = (host) => !effects.strict && (host === '::1' || host === 'localhost' || /^127\./.test(host));

  function connects(host, port) {
    if (answers.connect(host, port, null, seconds() / 1000).allowed || isOwn(host)) {
      effects.happens('net.connect', { host, port });
    } else {
      effects.deny('net', `${host}:${port}`);
    }
  }

  function connectsUnix(path, op = 'net.connect') {
    const full = path[0] === '\0' ? `@${path.slice(1)}` : effects.resolve(path).full;
    if (effects.isPrivate(full)) return;
    if (answers.unix(full, seconds() / 1000).allowed) effects.happens(op, { path: full });
    else effects.deny('net', `unix:${full}`);
  }

  function resolves(host) {
    if (typeof host !== 'string' || host === '' || isIP(host)) return;
    if (!answers.resolve(host).allowed && !isOwn(host)) effects.deny('net', host);
    else effects.observed('net.resolve', { host });
  }

  // Whatever a name was resolved to, the address is asked about too.
  function judged(lookup, host, port) {
    return (name, options, callback) => lookup(name, options, (error, found, family) => {
      const all = Array.isArray(found) ? found.map((entry) => entry.address) : [found];
      const wrong = error ? undefined : all.find((at) => !isOwn(host) && !answers.connect(host, port, at, null).allowed
        && !answers.policies.some((policy) => policy.hosts.some((rule) => rule.target[8])));
      if (wrong === undefined) return callback(error, found, family);
      try {
        effects.deny('net', `${host}:${port} (${wrong})`);
      } catch (denial) {
        return callback(denial);
      }
      return callback(error, found, family);
    });
  }

  const { connect } = net.Socket.prototype;
  net.Socket.prototype.connect = dressed(function (...given) {
    const normal = Array.isArray(given[0]) ? given[0] : normalized(given);
    const options = { ...normal[0] };
    if (typeof options.path === 'string') {
      connectsUnix(options.path);
    } else if (options.port !== undefined) {
      options.port = Number(options.port);
      options.host = String(options.host ?? 'localhost');
      connects(options.host, options.port);
      if (!isIP(options.host)) options.lookup = judged(options.lookup ?? dns.lookup, options.host, options.port);
    }
    return Reflect.apply(connect, this, [options, normal[1]].filter((one) => one));
  }, connect);

  const { listen } = net.Server.prototype;
  net.Server.prototype.listen = dressed(function (...given) {
    const [options] = normalized(given);
    if (typeof options.path === 'string') effects.change('net.bind', options.path);
    else if (effects.strict && options.fd === undefined && options.port !== undefined) {
      const host = options.host ?? '0.0.0.0';
      if (!answers.resolve(host).allowed) effects.deny('net', `${host}:${options.port}`);
    }
    return Reflect.apply(listen, this, given);
  }, listen);

  const { send, connect: connectDatagrams } = dgram.Socket.prototype;
  dgram.Socket.prototype.send = dressed(function (...given) {
    const numbers = given.slice(1).filter((one) => typeof one === 'number');
    const host = given.slice(1).find((one) => typeof one === 'string');
    if (numbers.length) connects(host ?? (this.type === 'udp6' ? '::1' : '127.0.0.1'), numbers[numbers.length === 3 ? 2 : 0]);
    return Reflect.apply(send, this, given);
  }, send);
  dgram.Socket.prototype.connect = dressed(function (port, address, ...rest) {
    connects(typeof address === 'string' ? address : '127.0.0.1', Number(port));
    return Reflect.apply(connectDatagrams, this, [Number(port), address, ...rest]);
  }, connectDatagrams);

  for (const holder of [dns, dns.promises, dns.Resolver.prototype, dns.promises.Resolver.prototype]) {
    for (const name of Object.getOwnPropertyNames(holder)) {
      const real = holder[name];
      if (typeof real !== 'function' || !/^(?:lookup|resolve\w*|reverse)$/.test(name)) continue;
      holder[name] = dressed(function (host, ...rest) {
        resolves(host);
        return Reflect.apply(real, this, [host, ...rest]);
      }, real);
    }
  }
}

// (port, host), (path), (options): as options, and the callback.
function normalized(given) {
  const [first, second] = given;
  const callback = given.find((one) => typeof one === 'function');
  if (first !== null && typeof first === 'object') return [first, callback];
  if (typeof first === 'string' && !/^\d+$/.test(first)) return [{ path: first }, callback];
  const options = first === undefined || typeof first === 'function' ? {} : { port: first };
  return [typeof second === 'string' ? { ...options, host: second } : options, callback];
}

module.exports = { install };
