// SPDX-License-Identifier: MIT
// Runs through a real server.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import {
  AgentboxClient,
  AgentboxConnectionError,
  AgentboxTimeoutError,
  AuthenticationError,
  InvalidRequestError,
  NotFoundError,
  OverloadedError,
  RunTimedOutError,
} from "../src/index.js";
import { client, keys, narrowUrl, textOf, url } from "./server.js";

const SLEEPS = "import time; print('begun', flush=True); time.sleep(60)";

test("the address has no slash at its end", () => {
  assert.equal(new AgentboxClient(`${url}/`).url, url);
});

test("health says who answers", async () => {
  const health = await client().health();
  assert.equal(health.status, "ok");
  assert.equal(health.backend, "jail");
  assert.deepEqual(health.runs, { working: 0, waiting: 0 });
});

test("arguments keep their old positions", async () => {
  const answer = await client().run("console.log(6 * 7)", "javascript", 5, 256);
  assert.equal(answer.stdout, "42\n");
  assert.equal(answer.language, "javascript");
  assert.equal(answer.limits_applied.timeout_seconds, 5);
  assert.equal(answer.limits_applied.memory_mb, 256);
  assert.ok(answer.ok);
});

test("an answer is the JSON of the API and has ways to read it", async () => {
  const answer = await client().run("import os; os.write(1, b'a\\xff'); os._exit(3)");
  assert.equal(answer.ok, false);
  assert.equal(answer.exit_code, 3);
  assert.deepEqual(answer.stdoutData(), new Uint8Array([97, 255]));
  assert.deepEqual(answer.stderrData(), new Uint8Array());
  assert.equal(JSON.parse(JSON.stringify(answer)).run_id, answer.run_id);
});

test("options travel", async () => {
  const answer = await client().run(
    "import sys, os\n" +
      "print(sys.stdin.read(), open('d/f').read(), sys.argv[1], os.environ['A'])\n" +
      "open('o.bin', 'wb').write(b'\\xff')",
    {
      stdin: new TextEncoder().encode("in"),
      files: { "d/f": "file" },
      args: ["arg"],
      env: { A: "env" },
      cpus: 0.5,
      pids: 32,
      diskMb: 16,
      maxOutputBytes: 4096,
      backend: "jail",
      returnFiles: ["*.bin"],
      egressAllowlist: [],
    },
  );
  assert.equal(answer.stdout, "in file arg env\n");
  assert.deepEqual(answer.fileData("o.bin"), new Uint8Array([255]));
  assert.throws(() => answer.fileData("other"), RangeError);
  const { cpus, pids, disk_mb, max_output_bytes } = answer.limits_applied;
  assert.deepEqual([cpus, pids, disk_mb, max_output_bytes], [0.5, 32, 16, 4096]);
});

test("a timeout is an error that holds the partial result", async () => {
  await assert.rejects(client().run(SLEEPS, { timeoutSeconds: 1 }), (error) => {
    assert.ok(error instanceof RunTimedOutError);
    assert.equal(error.name, "RunTimedOutError");
    assert.match(error.message, /^run failed: 408 /);
    assert.equal(error.code, "timed_out");
    assert.equal(error.result?.stdout, "begun\n");
    assert.ok(error.requestId);
    return true;
  });
});

test("a refusal is an error with code, hint and request id, and the old beginning of its message", async () => {
  await assert.rejects(client().run("1", "ruby"), (error) => {
    assert.ok(error instanceof InvalidRequestError);
    assert.equal(error.message, "run failed: 400 Unsupported language: ruby");
    assert.equal(error.code, "unsupported_language");
    assert.match(error.hint, /python/);
    assert.ok(error.requestId);
    return true;
  });
  await assert.rejects(client().run(""), /^InvalidRequestError: run failed: 422 body\.code: /);
});

test("a stream yields output as it happens, and then the result", async () => {
  const kinds = new Set<string>();
  let stderr: Uint8Array = new Uint8Array();
  let stdout = "";
  for await (const event of client().stream("import os\nprint('é')\nos.write(2, b'\\xff')")) {
    kinds.add(event.kind);
    if (event.kind === "stdout") stdout += event.text;
    if (event.kind === "stderr") stderr = event.data;
    if (event.kind === "result") assert.equal(event.result.stdout, "é\n");
  }
  assert.deepEqual([stdout, stderr], ["é\n", new Uint8Array([255])]);
  assert.deepEqual(kinds, new Set(["stdout", "stderr", "result"]));
});

test("separators that are no line feeds stay inside an event", async () => {
  const text = "a\u2028b\u0085c\u000bd\u2029\r";
  const answer = await client().run(`import os; os.write(1, ${JSON.stringify(text)}.encode())`);
  assert.equal(answer.stdout, text);
});

test("leaving a stream early ends the run", async () => {
  for await (const event of client().stream(SLEEPS)) if (event.kind === "stdout") break;
  await until(async () => (await client().health()).runs?.working === 0);
});

test("aborting ends the run and throws the reason", async () => {
  const over = new AbortController();
  const run = client().run(SLEEPS, { signal: over.signal });
  const reason = new Error("enough");
  await until(async () => (await client().health()).runs?.working === 1);
  over.abort(reason);
  await assert.rejects(run, reason);
  await until(async () => (await client().health()).runs?.working === 0);
  await assert.rejects(client().health({ signal: over.signal }), reason);
});

test("snapshots are kept, listed, started from and removed", async () => {
  const made = await client().run("open('memo.txt', 'w').write('kept')", { snapshot: true });
  const snapshotId = made.snapshot_id ?? "";
  const again = await client().run("print(open('memo.txt').read())", { snapshotId });
  assert.equal(again.stdout, "kept\n");
  assert.equal((await client().getSnapshot(snapshotId)).entries, 1);
  assert.ok((await client().snapshots()).some((one) => one.snapshot_id === snapshotId));
  await client().deleteSnapshot(snapshotId);
  await assert.rejects(client().getSnapshot(snapshotId), NotFoundError);
});

test("a name that would change the path is refused before anything is sent", async () => {
  await assert.rejects(client().getSnapshot("../health"), TypeError);
  await assert.rejects(client().deleteSnapshot(""), TypeError);
});

test("traces are read, and recorded runs replayed", async () => {
  const run = await client().run("print(open('in.txt').read())", {
    files: { "in.txt": "recorded" },
    policy: "read: ./in.txt",
    record: true,
  });
  const lines = (await textOf(client().trace(run.run_id))).trimEnd().split("\n");
  assert.equal(lines.length, run.trace?.count);
  assert.match(await client().publicKey(), /^-----BEGIN PUBLIC KEY-----/);
  const replay = await client().replay(run.run_id);
  assert.deepEqual([replay.ok, replay.divergences], [true, []]);
});

test("a key is needed where the server wants one, and each sees its own", async () => {
  await assert.rejects(new AgentboxClient(narrowUrl).run("1"), AuthenticationError);
  const [mine, other] = keys.map((apiKey) => new AgentboxClient(narrowUrl, { apiKey }));
  const made = await mine!.run("open('memo', 'w').write('mine')", { snapshot: true });
  assert.equal((await other!.snapshots()).length, 0);
  await assert.rejects(other!.getSnapshot(made.snapshot_id ?? ""), NotFoundError);
});

test("a busy server is told apart, and asked again only when the client was told to", async () => {
  const [apiKey] = keys as [string];
  const over = new AbortController();
  const busy = new AgentboxClient(narrowUrl, { apiKey });
  const works = (working: number, waiting: number) => async () => {
    const { runs } = await busy.health();
    return runs?.working === working && runs.waiting === waiting;
  };
  const first = busy.run(SLEEPS, { signal: over.signal });
  await until(works(1, 0));
  const second = busy.run("print(2)");
  await until(works(1, 1));
  await assert.rejects(busy.run("print(3)"), (error) => {
    assert.ok(error instanceof OverloadedError);
    assert.ok((error.retryAfterSeconds ?? 0) >= 1);
    return true;
  });
  const patient = new AgentboxClient(narrowUrl, { apiKey, retries: 5, fetch: endingFirstAfterRefusal(over) });
  const third = patient.run("print(3)");
  await assert.rejects(first);
  assert.deepEqual([(await second).stdout, (await third).stdout], ["2\n", "3\n"]);
});

test("a server that is not there is a connection error", async () => {
  await assert.rejects(new AgentboxClient("http://127.0.0.1:9").health(), AgentboxConnectionError);
});

test("a server that does not answer is given up after the client's own time", async () => {
  await using server = await silent(() => undefined);
  const asked = new AgentboxClient(server.url, { requestTimeoutSeconds: 0.05 });
  await assert.rejects(asked.health(), AgentboxTimeoutError);
});

test("what changes nothing is asked for again after a cut connection, and a run is not", async () => {
  let connections = 0;
  await using server = await silent((end) => {
    connections += 1;
    end();
  });
  const asked = new AgentboxClient(server.url, { retries: 2 });
  await assert.rejects(asked.snapshots(), AgentboxConnectionError);
  assert.equal(connections, 3);
  await assert.rejects(asked.run("print(1)"), AgentboxConnectionError);
  assert.equal(connections, 4);
});

test("a stream that is cut before its result is an error", async () => {
  const head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
  await using server = await silent((end) => end(`${head}event: stdout\ndata: {"seq":1,"text":"a"}\n\n`));
  await assert.rejects(new AgentboxClient(server.url).run("1"), /stream ended before its result/);
});

/** A fetch that lets the first run end as soon as the server has refused one for being busy. */
function endingFirstAfterRefusal(first: AbortController): typeof fetch {
  return async (...request) => {
    const answer = await fetch(...request);
    if (answer.status === 429) first.abort();
    return answer;
  };
}

/** A server on a free port that does with a connection what `greet` says once something was sent to it. */
async function silent(greet: (end: (text?: string) => void) => void) {
  const server = createServer((socket) => {
    socket.on("error", () => undefined);
    socket.once("data", () => greet((text = "") => socket.end(text)));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    [Symbol.asyncDispose]: () => new Promise<void>((resolve) => void server.close(() => resolve())),
  };
}

async function until(holds: () => Promise<boolean>): Promise<void> {
  while (!(await holds()));
}
