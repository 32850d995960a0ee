// SPDX-License-Identifier: MIT
// The trace vectors in Node.js, with its standard library only: node trace.mjs spec/trace/vectors
// Canonical text, hashes, Merkle roots and signatures are computed anew here; every file is either whole or refused.

import assert from "node:assert/strict";
import { createHash, createPrivateKey, createPublicKey, sign, verify as verifySignature } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

const directory = process.argv[2];
const load = (name) => JSON.parse(readFileSync(join(directory, name), "utf8"));
const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest();

function canonical(value, depth = 0) {
  if (typeof value === "string" && /[\ud800-\udfff]/u.test(value)) throw new Error("surrogate");
  if (typeof value === "number" && !Number.isFinite(value)) throw new Error("number");
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (depth >= 64) throw new Error("depth");
  if (Array.isArray(value)) return `[${value.map((item) => canonical(item, depth + 1)).join(",")}]`;
  // The default order of sort() is that of the UTF-16 code units.
  const members = Object.keys(value).sort().map((key) => `${canonical(key)}:${canonical(value[key], depth + 1)}`);
  return `{${members.join(",")}}`;
}

// JSON.parse takes the last of two equal keys; that the text is canonical says that there was only one.
function parseLine(bytes, exact) {
  const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  const fields = JSON.parse(text);
  if (exact) assert.equal(canonical(fields), text);
  return { text, fields };
}

function merkleRoot(leaves) {
  if (leaves.length === 0) return sha256("");
  if (leaves.length === 1) return leaves[0];
  let left = 1;
  while (left * 2 < leaves.length) left *= 2;
  return sha256(Buffer.from([1]), merkleRoot(leaves.slice(0, left)), merkleRoot(leaves.slice(left)));
}

function splitLines(bytes) {
  const lines = [];
  for (let start = 0; start < bytes.length; ) {
    const end = bytes.indexOf(10, start);
    assert.notEqual(end, -1, "torn");
    lines.push(bytes.subarray(start, end));
    start = end + 1;
  }
  return lines;
}

function checkSignature(fields, header, prev, leaves, keys) {
  const { sig, ...claim } = fields.args;
  assert.equal(claim.run, header.args.run);
  assert.equal(claim.policy_sha256, header.args.policy_sha256);
  assert.equal(claim.count, leaves.length);
  assert.equal(claim.head, prev);
  assert.equal(claim.root, merkleRoot(leaves).toString("hex"));
  const { sha, ...signed } = { ...fields, args: claim };
  const message = Buffer.from(`agentbox trace 2\n${canonical(signed)}`);
  const key = keys.find((pem) => keyId(pem) === claim.key);
  assert.ok(key, "key");
  assert.ok(verifySignature(null, message, createPublicKey(key), Buffer.from(sig, "base64")), "signature");
}

function keyId(pem) {
  const der = createPublicKey(pem).export({ type: "spki", format: "der" });
  return sha256(der.subarray(der.length - 32)).toString("hex").slice(0, 32);
}

// Throws when the file is not whole.
function verifyFile(bytes, keys) {
  const lines = splitLines(bytes);
  assert.ok(lines.length > 0, "empty");
  const header = JSON.parse(lines[0]);
  const isOld = !("v" in header);
  assert.ok(!isOld || keys.mayBeUnsigned, "unsigned");
  const leaves = [];
  let prev = "0".repeat(64);
  let sealed = false;
  for (const line of lines) {
    assert.ok(!sealed, "after the seal");
    const { text, fields } = parseLine(line, !isOld);
    assert.equal(fields.v, isOld ? undefined : 2);
    assert.equal(fields.prev, prev);
    assert.equal(fields.i, leaves.length);
    // Python and JavaScript spell some numbers differently in the old form, so there the text itself is hashed.
    const { sha, ...rest } = fields;
    const body = isOld ? text.replace(`,"sha":"${sha}"`, "") : canonical(rest);
    assert.equal(sha, sha256(prev, body).toString("hex"));
    if (!isOld && (fields.op === "trace.checkpoint" || fields.op === "trace.seal")) {
      checkSignature(fields, header, prev, leaves, keys.trusted);
      sealed = fields.op === "trace.seal";
    }
    leaves.push(Buffer.from(sha, "hex"));
    prev = sha;
  }
  assert.ok(sealed || isOld, "no seal");
}

// The file that a run's records become: chained, with a checkpoint where one is asked for, and sealed.
function written({ seed, run, start_nanoseconds: start, records }) {
  const der = Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), Buffer.from(seed, "base64")]);
  const privateKey = createPrivateKey({ key: der, format: "der", type: "pkcs8" });
  const key = keyId(createPublicKey(privateKey).export({ type: "spki", format: "pem" }));
  const leaves = [];
  const lines = [];
  let prev = "0".repeat(64);
  let microseconds = 0;
  const put = (fields, signs) => {
    const i = leaves.length;
    // The clock goes on by 10 ms at each look and once goes back by an hour; times never go back.
    const now = start / 1000 + (i + 1) * 10_000 - (i === 3 ? 3_600_000_000 : 0);
    microseconds = Math.max(microseconds, now);
    const record = { i, prev, ts: Number((microseconds / 1e6).toFixed(6)), v: 2, ...fields };
    if (signs) {
      record.args = { run: run.id, policy_sha256: run.policy_sha256, key, count: i, head: prev, root: merkleRoot(leaves).toString("hex") };
      record.args.sig = sign(null, Buffer.from(`agentbox trace 2\n${canonical(record)}`), privateKey).toString("base64");
    }
    const sha = sha256(prev, canonical(record));
    prev = sha.toString("hex");
    lines.push(`${canonical({ ...record, sha: prev })}\n`);
    leaves.push(sha);
  };
  const meta = { kind: "meta", origin: "supervisor" };
  put({ ...meta, op: "run.start", args: { run: run.id, policy_sha256: run.policy_sha256, key, ...run.details } });
  for (const fields of records) {
    if (fields.checkpoint) put({ ...meta, op: "trace.checkpoint" }, true);
    else put({ origin: "supervisor", ...fields });
  }
  put({ ...meta, op: "trace.seal" }, true);
  return lines.join("");
}

const chain = load("chain.json");
assert.equal(written(chain), readFileSync(join(directory, "files", chain.file), "utf8"), "the file of the chain");

const { vectors } = load("canonical.json");
for (const { name, input, canonical: expected, error } of vectors) {
  if (error === undefined) {
    assert.equal(canonical(JSON.parse(input)), expected, name);
    assert.equal(canonical(JSON.parse(expected)), expected, name);
  } else {
    assert.throws(() => assert.equal(canonical(JSON.parse(input)), input), name);
  }
}

const { verdicts, keys } = load("verdicts.json");
for (const { file, status, key = "own", explicit = false } of verdicts) {
  const trusted = key === "none" ? [] : [keys[key]];
  const judge = () => verifyFile(readFileSync(join(directory, "files", file)), { trusted, mayBeUnsigned: !explicit });
  if (status === "ok") assert.doesNotThrow(judge, `${file} is whole`);
  else assert.throws(judge, undefined, `${file}: ${status}`);
}

console.log(`${chain.records.length} records, ${vectors.length} canonical, ${verdicts.length} verdicts`);
