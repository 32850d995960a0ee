// SPDX-License-Identifier: MIT
const assert = require("node:assert");
const fs = require("node:fs");
const http = require("node:http");
const crypto = require("node:crypto");
const { execFileSync, fork } = require("node:child_process");
const { Worker, isMainThread, parentPort } = require("node:worker_threads");

async function main() {
  const workers = [1, 2].map(
    (number) =>
      new Promise((done, fail) => {
        const worker = new Worker("require('node:worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
        worker.on("message", done).on("error", fail);
      }),
  );
  assert.deepStrictEqual(await Promise.all(workers), [42, 42]);
  const server = http.createServer((request, response) => response.end("served " + request.url));
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  const { port } = server.address();
  const text = await new Promise((done, fail) =>
    http.get({ port, path: "/a" }, (response) => {
      let body = "";
      response.on("data", (chunk) => (body += chunk)).on("end", () => done(body));
    }).on("error", fail),
  );
  assert.strictEqual(text, "served /a");
  if (globalThis.fetch) {
    assert.strictEqual(await (await fetch(`http://localhost:${port}/b`)).text(), "served /b");
  }
  server.close();
  server.closeAllConnections?.();
  assert.strictEqual(execFileSync("echo", ["child"]).toString(), "child\n");
  await fs.promises.writeFile("file.txt", "text");
  assert.strictEqual(fs.readFileSync("file.txt", "utf8"), "text");
  assert.strictEqual(crypto.createHash("sha256").update("").digest("hex").slice(0, 4), "e3b0");
  const big = [];
  for (let index = 0; index < 200; index++) big.push(Buffer.alloc(1 << 18, index));
  assert.strictEqual(big.length, 200);
  console.log("works");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
