// SPDX-License-Identifier: MIT
// Questions about a policy, answered from the tables that the host made of it (guest/tables.py). The meaning is that of
// agentbox.policy.evaluation, and the same vectors hold both to it. A verdict is {allowed, rule, reason, commit}.
'use strict';

const { host, address, inNetwork, textOf } = require('./addresses.cjs');

const ANY = 1;
const RUN = 2;
const MAX_COUNTED = 100_000;
const LOOPBACK = [{ version: 4, value: 127n << 24n, prefix: 8 }, { version: 6, value: 1n, prefix: 128 }];

const no = (reason, rule = null) => ({ allowed: false, rule, reason, commit: null });
const yes = (rule, commit = null) => ({ allowed: true, rule, reason: '', commit });

function greedy(pattern, text, isRun, one) {
  let at = 0;
  let position = 0;
  let run = -1;
  let resume = 0;
  while (position < text.length) {
    if (at < pattern.length && isRun(pattern[at])) {
      run = at++;
      resume = position;
    } else if (at < pattern.length && one(pattern[at], text[position])) {
      at++;
      position++;
    } else if (run >= 0) {
      position = ++resume;
      at = run + 1;
    } else {
      return false;
    }
  }
  for (; at < pattern.length; at++) if (!isRun(pattern[at])) return false;
  return true;
}

function fits(token, character) {
  if (typeof token === 'string') return token === character;
  if (typeof token === 'number') return token === ANY;
  const code = character.codePointAt(0);
  const found = token[1].some(([low, high]) => low.codePointAt(0) <= code && code <= high.codePointAt(0));
  return token[0] !== found;
}

// Characters are code points, as on the host.
const matches = (tokens, text) => greedy(tokens, Array.from(text), (token) => token === RUN, fits);
const isBelow = (path, directory) => path === directory || directory === '/' || path.startsWith(directory + '/');

function isPlain(path) {
  if (typeof path !== 'string' || path[0] !== '/' || path.includes('\0') || path.includes('//')) return false;
  if (path.includes('/.') && path.split('/').some((part) => part === '.' || part === '..')) return false;
  return path === '/' || !path.endsWith('/');
}

function covers(target, path) {
  const [, base, pattern] = target;
  if (!isBelow(path, base)) return false;
  if (!pattern.length) return true;
  const rest = path.slice(base.length).replace(/^\/+|\/+$/g, '');
  return greedy([...pattern, '**'], rest ? rest.split('/') : [], (part) => part === '**', matches);
}

function table(rules) {
  const exact = new Map();
  const patterns = [];
  for (const rule of rules) {
    const [kind, path, pattern, alias] = rule.target;
    if (kind !== 'path') continue;
    if (pattern.length) {
      patterns.push(rule);
      continue;
    }
    if (!exact.has(path)) exact.set(path, rule);
    if (rule.deny && alias && !exact.has(alias)) exact.set(alias, rule);
  }
  return { exact, patterns };
}

function find({ exact, patterns }, path) {
  for (let at = path; at && exact.size; at = at.slice(0, at.lastIndexOf('/'))) if (exact.has(at)) return exact.get(at);
  return exact.get('/') ?? patterns.find((rule) => covers(rule.target, path)) ?? null;
}

function findWithin({ exact, patterns }, directory) {
  for (const [path, rule] of exact) if (isBelow(path, directory)) return rule;
  return patterns.find((rule) => isBelow(rule.target[1], directory)) ?? null;
}

function whyProtected(path, known) {
  const parts = path.toLowerCase().split('/');
  const has = (names, name) => (Object.hasOwn(names, name) ? names[name] : '');
  let before = '';
  let submodules = false;
  for (const part of parts) {
    const pair = known.sequences.find(([first, second]) => first === before && second === part);
    const why = has(known.names, part) || (pair && pair[2]) || (submodules && has(known.submodule, part));
    if (why) return why;
    submodules ||= before === '.git' && part === 'modules';
    before = part;
  }
  const last = parts[parts.length - 1];
  const dot = last.lastIndexOf('.');
  return has(known.last, last) || (dot >= 0 ? has(known.suffixes, last.slice(dot)) : '');
}

const VERSION = /[0-9.-]+$/;
function sameName(called, named) {
  const a = called.slice(called.lastIndexOf('/') + 1);
  const b = named.slice(named.lastIndexOf('/') + 1);
  const plain = b.replace(VERSION, '');
  return a === b || (plain !== '' && a.replace(VERSION, '') === plain);
}

class Policy {
  constructor(tables, known, counting) {
    this.known = known;
    this.counting = counting;
    this.own = tables.own;
    this.rules = tables.rules.map(([verb, deny, text, line, canonical, target]) => (
      { verb, deny, text, line, canonical, target }));
    const grants = this.rules.filter((rule) => !rule.deny);
    const denials = this.rules.filter((rule) => rule.deny);
    const ofKind = (rules, kind) => rules.filter((rule) => rule.target[0] === kind);
    this.readDenials = table(denials.filter((rule) => rule.verb === 'read'));
    this.writeDenials = table(denials.filter((rule) => rule.verb === 'read' || rule.verb === 'write'));
    this.reads = table(grants.filter((rule) => ['read', 'write', 'read-once'].includes(rule.verb)));
    this.writes = table(grants.filter((rule) => rule.verb === 'write'));
    this.once = grants.filter((rule) => rule.verb === 'read-once');
    this.capped = ofKind(grants, 'path').filter((rule) => rule.target[4] !== null);
    this.protection = ofKind(this.rules, 'switch').find((rule) => rule.target[1]) ?? null;
    this.hosts = ofKind(grants, 'host').map(prepared);
    this.hostDenials = ofKind(denials, 'host').map(prepared);
    this.sockets = ofKind(grants, 'unix');
    this.socketDenials = ofKind(denials, 'unix');
    this.programs = ofKind(grants, 'exec').filter((rule) => rule.target[2] !== null);
    this.programDenials = ofKind(denials, 'exec');
    this.expected = new Set();
    this.spent = new Set();
    this.sizes = new Map();
    this.times = new Map();
  }

  read(path, identity) {
    if (!isPlain(path)) return no('the path is not absolute and resolved');
    const denied = find(this.readDenials, path);
    if (denied) return no('denied', denied);
    const granted = find(this.reads, path);
    if (!granted) return no('no `read:` or `write:` rule covers it');
    if (!this.once.length || !this.counting) return yes(granted);
    const key = identity || path;
    const covering = this.once.find((rule) => covers(rule.target, path));
    if (!covering && !this.expected.has(key)) return yes(granted);
    const rule = covering ?? this.once[0];
    if (this.spent.has(key)) return no('this file was read before', rule);
    if (this.spent.size >= MAX_COUNTED) return no('more files than can be counted', rule);
    return yes(granted, () => {
      this.expected.add(key);
      this.spent.add(key);
    });
  }

  write(path, size, identity, whole) {
    if (!isPlain(path)) return no('the path is not absolute and resolved');
    const denied = find(this.writeDenials, path);
    if (denied) return no('denied', denied);
    if (this.own.some((own) => isBelow(path, own))) return no('it is the policy or where traces lie');
    if (whole) {
      const within = findWithin(this.writeDenials, path);
      if (within) return no('denied', within);
      if (this.own.some((own) => isBelow(own, path))) return no('it holds the policy or where traces lie');
    }
    const granted = find(this.writes, path);
    if (!granted) return no('no `write:` rule covers it');
    const why = this.protection ? whyProtected(path, this.known.protected) : '';
    if (why) return no(why, this.protection);
    if (!this.capped.length || size === null || size === undefined || !this.counting) return yes(granted);
    return this.withinCaps(path, Math.max(size, 0), identity || path, granted);
  }

  withinCaps(path, size, identity, granted) {
    const counted = [];
    for (const rule of this.capped) {
      if (!covers(rule.target, path)) continue;
      if (!this.sizes.has(rule.canonical)) this.sizes.set(rule.canonical, new Map());
      const sizes = this.sizes.get(rule.canonical);
      const before = sizes.get(identity) ?? 0;
      let total = size - before;
      for (const one of sizes.values()) total += one;
      if (total > rule.target[4] && size > before) return no(`the files below it would pass ${rule.target[4]} bytes`, rule);
      if (sizes.size >= MAX_COUNTED && !sizes.has(identity)) return no('more files than can be counted', rule);
      counted.push(sizes);
    }
    return yes(granted, () => {
      for (const sizes of counted) size ? sizes.set(identity, size) : sizes.delete(identity);
    });
  }

  resolve(given) {
    const found = host(given);
    if (!found) return no('this is neither a host name nor an address');
    for (const rule of this.matching(this.hostDenials, found.name, found.address, null)) {
      if (rule.port === null) return no('denied', rule);
    }
    for (const rule of this.matching(this.hosts, found.name, found.address, null)) {
      if (!found.address || !this.isSpecial(found.address) || namesAddress(rule)) return yes(rule);
    }
    return no('no `net:` rule names it');
  }

  connect(given, port, at, now) {
    const found = host(given);
    if (!found) return no('this is neither a host name nor an address');
    if (!Number.isInteger(port) || port < 1 || port > 65535) return no('a connection has a port from 1 to 65535');
    let target = found.address;
    if (at !== null && at !== undefined) {
      target = typeof at === 'string' ? address(at) : null;
      if (!target) return no('this is no address');
    }
    for (const [name, asked] of [[found.name, found.address], ['', target]]) {
      const [rule] = this.matching(this.hostDenials, name, asked, port);
      if (rule) return no('denied', rule);
    }
    let rules = this.matching(this.hosts, found.name, found.address, port);
    if (!rules.length) return no('no `net:` rule names it');
    if (target && this.isSpecial(target)) {
      const naming = this.matching(this.hosts, '', target, port).filter(namesAddress);
      if (found.name === 'localhost' && LOOPBACK.some((network) => inNetwork(target, network))) {
        naming.push(...rules.filter((rule) => rule.target[1] === found.name));
      }
      if (!naming.length) return no('it is a private, local or reserved address, which a rule must name itself');
      if (found.address) rules = naming;
    }
    return this.rated(rules[0], rules.filter((rule) => rule.target[8]), 8, now);
  }

  unix(path, now) {
    if (typeof path !== 'string' || (path[0] !== '@' && !isPlain(path))) return no('no `net: unix:` rule names it');
    const denied = this.socketDenials.find((rule) => isSocket(rule.target, path));
    if (denied) return no('denied', denied);
    const found = this.sockets.filter((rule) => isSocket(rule.target, path));
    if (!found.length) return no('no `net: unix:` rule names it');
    return this.rated(found[0], found.filter((rule) => rule.target[4]), 4, now);
  }

  rated(granted, rated, column, now) {
    if (!rated.length || !this.counting) return yes(granted);
    const after = [];
    for (const rule of rated) {
      const [count, seconds] = rule.target[column];
      const known = now === null || now === undefined ? null : this.times.get(rule.canonical) ?? [];
      const recent = known && known.filter((time) => time > now - seconds);
      if (!recent || recent.length >= count) return no('there were as many connections as it allows', rule);
      after.push([rule.canonical, [...recent, now]]);
    }
    return yes(granted, () => after.forEach(([key, times]) => this.times.set(key, times)));
  }

  matching(rules, name, at, port) {
    const fitting = rules.filter((rule) => port === null || rule.port === null || rule.port === port);
    return [
      ...fitting.filter((rule) => name && rule.target[1] === name),
      ...fitting.filter((rule) => !rule.target[1] && fitsHost(rule, name, at)),
    ];
  }

  isSpecial(at) {
    return this.known.special.some((network) => inNetwork(at, network));
  }

  start(argv, program, parent) {
    if (!Array.isArray(argv) || !argv.length || !argv[0] || argv.some((word) => typeof word !== 'string')) {
      return no('a program is started with a list of words, its name first');
    }
    const denied = this.programDenials.find((rule) => isDeniedProgram(rule.target, argv, program));
    if (denied) return no('denied', denied);
    if (!isPlain(program)) return no('there is no such program');
    const own = this.programs.find(({ target }) => target[2] === program
      && (parent === program || hasWords(target[1], argv)));
    const part = own ?? this.programs.find(({ target }) => target[3].some((directory) => isBelow(program, directory)
      && typeof parent === 'string' && (parent === target[2] || (isPlain(parent) && isBelow(parent, directory)))));
    return part ? yes(part) : no('no `exec:` rule allows this program with these arguments');
  }
}

function prepared(rule) {
  const number = ([version, hex, prefix]) => ({ version, value: BigInt(`0x${hex}`), prefix });
  return {
    ...rule,
    port: rule.target[7],
    address: rule.target[5] && number(rule.target[5]),
    network: rule.target[6] && number(rule.target[6]),
  };
}

function fitsHost(rule, name, at) {
  const [, , pattern, anyHost, addressPattern] = rule.target;
  if (anyHost) return rule.deny || !(name === 'localhost' || name.endsWith('.localhost'));
  if (at) {
    if (rule.address) return rule.address.version === at.version && rule.address.value === at.value;
    if (rule.network) return inNetwork(at, rule.network);
    return addressPattern && matches(pattern, textOf(at));
  }
  return Boolean(name) && pattern.length > 0 && !addressPattern && matches(pattern, name);
}

const namesAddress = (rule) => !rule.target[3] && !rule.target[1];

function isSocket(target, path) {
  if (target[3]) return true;
  if (path[0] === '@') return target[2].length > 0 && matches(target[2], path.slice(1));
  return target[1] !== null && covers(target[1], path);
}

const hasWords = (words, argv) => sameName(argv[0], words[0]) && words.slice(1).every((word, i) => argv[i + 1] === word);

function isDeniedProgram(target, argv, program) {
  const [, words, named] = target;
  let same = named !== null ? program === named : sameName(argv[0], words[0]);
  if (named === null && typeof program === 'string' && !same) same = sameName(program, words[0]);
  return same && words.slice(1).every((word, i) => argv[i + 1] === word);
}

// What a policy, or several at once, say: each is asked, and an effect is counted when all allow it.
class Answers {
  constructor(tables, counting = true) {
    const known = {
      protected: tables.protected,
      special: tables.special.map(([version, hex, prefix]) => ({ version, value: BigInt(`0x${hex}`), prefix })),
    };
    this.policies = tables.policies.map((policy) => new Policy(policy, known, counting));
    this.onceTargets = this.policies.flatMap((policy) => policy.once.map((rule) => rule.target));
    this.caps = this.policies.flatMap((policy) => policy.capped.map((rule) => rule.target));
    this.writeBases = this.policies.flatMap((policy) => policy.rules
      .filter((rule) => rule.verb === 'write' && !rule.deny).map((rule) => rule.target[1]));
  }

  // What the rules lend: their paths, or the directories of their patterns.
  get lent() {
    return this.policies.flatMap((policy) => policy.rules
      .filter((rule) => rule.target[0] === 'path' && !rule.deny).map((rule) => rule.target[1]));
  }

  // Whether some rules about reading are finer than what a wall holds.
  get hasFineReads() {
    return this.policies.some((policy) => policy.once.length > 0 || policy.readDenials.patterns.length > 0);
  }

  all(ask) {
    const verdicts = this.policies.map(ask);
    const denied = verdicts.find((verdict) => !verdict.allowed);
    if (denied) return denied;
    for (const verdict of verdicts) verdict.commit?.();
    return verdicts[0];
  }

  read(path, identity) { return this.all((policy) => policy.read(path, identity)); }
  write(path, size, identity, whole) { return this.all((policy) => policy.write(path, size, identity, whole)); }
  resolve(given) { return this.all((policy) => policy.resolve(given)); }
  connect(given, port, at, now) { return this.all((policy) => policy.connect(given, port, at, now)); }
  unix(path, now) { return this.all((policy) => policy.unix(path, now)); }
  start(argv, program, parent) { return this.all((policy) => policy.start(argv, program, parent)); }
  // Whether a path may be looked at, which counts nothing.
  look(path) { return this.all((policy) => ({ ...policy.read(path, null), commit: null })); }
  expectOnce(identity) { for (const policy of this.policies) policy.expected.add(identity); }
}

module.exports = { Answers, covers, isBelow, matches };
