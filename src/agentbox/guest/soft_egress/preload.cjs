// SPDX-License-Identifier: MIT
// Refuses connections to hosts that AGENTBOX_EGRESS_HOSTS does not name. Loaded by Node at its start, through
// NODE_OPTIONS; runs inside the guest, so it only stops code that does not mean to get around it.
'use strict';

const text = process.env.AGENTBOX_EGRESS_HOSTS;
if (text !== undefined) {
  const net = require('net');
  const dns = require('dns');
  const dgram = require('dgram');

  const allowed = new Map();
  for (const entry of text.split(',').filter(Boolean)) {
    const [host, port] = entry.split(':');
    const name = host.toLowerCase().replace(/\.$/, '');
    if (!allowed.has(name)) allowed.set(name, new Set());
    allowed.get(name).add(port === undefined ? null : Number(port));
  }
  const portsOf = new Map(allowed);

  const nameOf = (host) => String(host).toLowerCase().replace(/\.$/, '').replace(/^\[(.*)\]$/, '$1').split('%')[0];
  const denial = (host) => {
    const error = new Error(`agentbox egress denied: ${host}`);
    error.code = 'EGRESS_DENIED';
    return error;
  };
  const fits = (host, port) => {
    const ports = portsOf.get(nameOf(host));
    return ports !== undefined && (ports.has(null) || ports.has(Number(port)));
  };
  const remember = (name, addresses) => {
    for (const address of addresses) {
      portsOf.set(address, new Set([...(portsOf.get(address) || []), ...allowed.get(name)]));
    }
  };

  const lookup = dns.lookup;
  dns.lookup = function (host, options, callback) {
    const done = typeof options === 'function' ? options : callback;
    if (host && !net.isIP(nameOf(host)) && !allowed.has(nameOf(host))) {
      process.nextTick(done, denial(host));
      return {};
    }
    const seen = (error, found, family) => {
      if (!error && allowed.has(nameOf(host))) {
        remember(nameOf(host), Array.isArray(found) ? found.map((one) => one.address) : [found]);
      }
      done(error, found, family);
    };
    return typeof options === 'function' ? lookup.call(dns, host, seen) : lookup.call(dns, host, options, seen);
  };
  const promised = dns.promises.lookup;
  dns.promises.lookup = async function (host, options) {
    if (host && !net.isIP(nameOf(host)) && !allowed.has(nameOf(host))) throw denial(host);
    const found = await promised.call(dns.promises, host, options);
    if (allowed.has(nameOf(host))) remember(nameOf(host), [].concat(found).map((one) => one.address));
    return found;
  };
  for (const source of [dns, dns.Resolver.prototype, dns.promises, dns.promises.Resolver.prototype]) {
    for (const name of Object.getOwnPropertyNames(source).filter((key) => /^(resolve|reverse)/.test(key))) {
      const original = source[name];
      if (typeof original !== 'function') continue;
      source[name] = function (host, ...rest) {
        if (allowed.has(nameOf(host))) return original.call(this, host, ...rest);
        const done = rest[rest.length - 1];
        if (typeof done !== 'function') return Promise.reject(denial(host));
        process.nextTick(done, denial(host));
        return undefined;
      };
    }
  }

  const connect = net.Socket.prototype.connect;
  net.Socket.prototype.connect = function (...given) {
    const [first] = Array.isArray(given[0]) ? given[0] : given;
    const options = first !== null && typeof first === 'object' ? first : { port: first, host: given[1] };
    const isPath = options.path || (typeof first === 'string' && Number.isNaN(Number(first)));
    if (!isPath) {
      const host = typeof options.host === 'string' ? options.host : 'localhost';
      if (!fits(host, options.port)) {
        const error = denial(host);
        process.nextTick(() => this.destroy(error));
        return this;
      }
    }
    return connect.apply(this, given);
  };

  const send = dgram.Socket.prototype.send;
  dgram.Socket.prototype.send = function (...given) {
    const numbers = given.slice(1).filter((one) => typeof one === 'number');
    const host = given.slice(1).find((one) => typeof one === 'string');
    const port = numbers[numbers.length - 1];
    if (fits(host === undefined ? 'localhost' : host, port)) return send.apply(this, given);
    const done = given[given.length - 1];
    const error = denial(host === undefined ? 'localhost' : host);
    if (typeof done === 'function') process.nextTick(done, error);
    else process.nextTick(() => this.emit('error', error));
    return undefined;
  };
  const bound = dgram.Socket.prototype.connect;
  dgram.Socket.prototype.connect = function (port, host, ...rest) {
    const target = typeof host === 'string' ? host : 'localhost';
    if (!fits(target, port)) throw denial(target);
    return bound.call(this, port, host, ...rest);
  };
}
