// SPDX-License-Identifier: MIT
// The doors to the network: sockets, datagrams, names, servers. TLS, HTTP and fetch stand on the first.
'use strict';

const dgram = require('node:dgram');
const dns = require('node:dns');
const net = require('node:net');
const { isIP } = net;
const { performance } = require('node:perf_hooks');

const { dressed } = require('./dressing.cjs');
const { named, textOf } = require('./resolve.cjs');

const seconds = performance.now.bind(performance);
// Where the kernel takes ports from.
const PORTS = { first: 32_768, count: 28_232 };

function install(effects) {
  const { answers } = effects;
  const isOwn = (host) => !effects.strict && (host === '::1' || host === 'localhost' || /^127\./.test(host));

  // A port of which the program says that any will do: the same one in a replay; null where it may be any.
  const anyPort = () => {
    const random = effects.tape?.random;
    return random ? PORTS.first + random.below(PORTS.count) : null;
  };

  // What the gateway gives names for addresses (egress/names.py): it alone knows which name one stands for.
  const isSynthetic = (host) => !effects.strict && /^(198\.1[89]\.|fd61:6762:6f78::)/i.test(host);

  function connects(host, port) {
    if (isSynthetic(host)) return;
    if (answers.connect(host, port, null, seconds() / 1000).allowed || isOwn(host)) {
      effects.happens('net.connect', { host, port });
    } else {
      effects.deny('net', `${host}:${port}`);
    }
  }

  // A path, or a name of the abstract space, which begins with NUL.
  const socketName = (path) => (path[0] === '\0' ? `@${path.slice(1)}` : effects.resolve(path).full);

  function usesUnix(path, op) {
    const full = socketName(path);
    if (full[0] !== '@' && effects.isPrivate(full)) return;
    if (answers.unix(full, seconds() / 1000).allowed) effects.happens(op, { path: named(full) });
    else effects.deny('net', `unix:${full}`);
  }

  function resolves(host) {
    if (typeof host !== 'string' || host === '' || isIP(host)) return;
    if (!answers.resolve(host).allowed && !isOwn(host)) effects.deny('net', host);
    else effects.observed('net.resolve', { host });
  }

  // The name of an address is asked of whoever answers for it.
  function reverses(host) {
    if (typeof host === 'string' && !answers.resolve(host).allowed && !isOwn(host)) effects.deny('net', host);
  }

  function binds(host, port) {
    if (effects.strict && !answers.resolve(host).allowed) effects.deny('net', `${host}:${port}`);
  }

  // Whatever a name was resolved to, the address is asked about too; behind a wall the gateway does that.
  function judged(lookup, host, port) {
    return (name, options, callback) => lookup(name, options, (error, found, family) => {
      const all = Array.isArray(found) ? found.map((entry) => entry.address) : [found];
      const wrong = error || !effects.strict ? undefined : all.find((at) => !isOwn(host) && !answers.connect(host, port, at, null).allowed
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
      usesUnix(options.path, 'net.connect');
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
    const [options, callback] = normalized(given);
    const plain = options._handle || options.handle ? options : { ...options };
    if (typeof plain.path === 'string') {
      if (plain.path[0] === '\0') usesUnix(plain.path, 'net.bind');
      else effects.change('net.bind', textOf(plain.path));
    } else if (plain.fd === undefined && plain.port !== undefined) {
      binds(String(plain.host ?? '0.0.0.0'), plain.port);
    }
    // What the guard looked at is what is used, unless it is given in a way that has no second face.
    const simple = given.every((one) => one === null || typeof one !== 'object');
    const port = plain === options && !simple || plain.path !== undefined || plain.fd !== undefined || Number(plain.port ?? 0) !== 0
      ? null : anyPort();
    if (simple && port !== null && given[0] !== undefined && given[0] !== null && typeof given[0] !== 'function') {
      return Reflect.apply(listen, this, [port, ...given.slice(1)]);
    }
    if (port !== null) plain.port = port;
    return Reflect.apply(listen, this, port === null && (simple || plain === options) ? given : [plain, callback].filter((one) => one));
  }, listen);
  installDatagrams(connects, binds, effects);
  installNames(resolves, reverses, connects);
}

function installDatagrams(connects, binds, effects) {
  const { send, connect, bind } = dgram.Socket.prototype;
  const own = (socket) => (socket.type === 'udp6' ? '::1' : '127.0.0.1');
  dgram.Socket.prototype.send = dressed(function (data, ...given) {
    // (data, [offset, length,] [port, [address]] [callback]); a connected socket has its address already.
    const end = given.findIndex((one) => typeof one === 'function');
    const args = end < 0 ? [...given] : given.slice(0, end);
    const at = args.length >= 4 || (args.length >= 3 && isNumber(args[2])) ? 2 : 0;
    const isConnected = peerOf(this);
    if (!isConnected && args[at] !== undefined) {
      args[at] = Number(args[at]);
      if (args[at + 1] !== undefined && args[at + 1] !== null) args[at + 1] = String(args[at + 1]);
      connects(args[at + 1] || own(this), args[at]);
    }
    return Reflect.apply(send, this, [data, ...args, ...(end < 0 ? [] : given.slice(end))]);
  }, send);
  dgram.Socket.prototype.connect = dressed(function (port, address, ...rest) {
    const host = typeof address === 'string' && address ? address : own(this);
    connects(host, Number(port));
    return Reflect.apply(connect, this, [Number(port), address, ...rest]);
  }, connect);
  dgram.Socket.prototype.bind = dressed(function (...given) {
    const options = given[0] !== null && typeof given[0] === 'object' ? { ...given[0] } : { port: given[0], address: given[1] };
    const address = typeof options.address === 'string' && options.address ? options.address : '0.0.0.0';
    // Without a port it is what sending does by itself.
    if (options.fd === undefined && options.port) binds(address, options.port);
    return Reflect.apply(bind, this, given[0] !== null && typeof given[0] === 'object' ? [options, ...given.slice(1)] : given);
  }, bind);
  // A look-up of the program's own may say any address.
  const { createSocket, Socket } = dgram;
  const without = (options) => {
    if (options === null || typeof options !== 'object' || options.lookup === undefined) return options;
    effects.deny('net', 'datagrams by a look-up of its own');
    return { ...options, lookup: undefined };
  };
  dgram.createSocket = dressed((options, listener) => createSocket(without(options), listener), createSocket);
  dgram.Socket = dressed(function (options, listener) { return Reflect.construct(Socket, [without(options), listener]); }, Socket);
  dgram.Socket.prototype = Socket.prototype;
  Socket.prototype.constructor = dgram.Socket;
}

function installNames(resolves, reverses, connects) {
  const holders = [dns, dns.promises, dns.Resolver.prototype, dns.promises.Resolver.prototype];
  for (const holder of new Set([...holders, ...holders.slice(2).map(Object.getPrototypeOf)])) {
    for (const name of Object.getOwnPropertyNames(holder)) {
      const real = Object.getOwnPropertyDescriptor(holder, name).value;
      if (typeof real !== 'function' || real === Object || name === 'constructor') continue;
      const ask = /^(?:lookup|resolve\w*)$/.test(name) ? resolves : /^(?:lookupService|reverse)$/.test(name) ? reverses : null;
      if (ask) {
        holder[name] = dressed(function (host, ...rest) {
          ask(host);
          return Reflect.apply(real, this, [host, ...rest]);
        }, real);
      } else if (name === 'setServers') {
        holder[name] = dressed(function (given) {
          const servers = Array.from(given, String);
          for (const server of servers) connects(...hostAndPort(server));
          return Reflect.apply(real, this, [servers]);
        }, real);
      }
    }
  }
}

const isNumber = (value) => typeof value === 'number' || /^\d+$/.test(value);

// 1.2.3.4, 1.2.3.4:53, [::1]:53 or ::1.
function hostAndPort(server) {
  const [, bracketed, plain, port] = /^(?:\[(.*)\]|([^:]*|.*:.*:.*?))(?::(\d+))?$/.exec(server) ?? [];
  return isIP(server) ? [server, 53] : [bracketed ?? plain ?? server, Number(port ?? 53)];
}

function peerOf(socket) {
  try {
    return socket.remoteAddress();
  } catch {
    return null;
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
