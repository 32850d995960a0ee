// SPDX-License-Identifier: MIT
// The behaviours of spec/sandbox/behaviours.json, each a test of its name, against a real server.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import {
  AgentboxClient,
  AgentboxError,
  AgentboxHTTPError,
  type Command,
  InvalidRequestError,
  PolicySyntaxError,
  Sandbox,
  SandboxFileError,
  SandboxGoneError,
  type SandboxOptions,
} from "../src/index.js";
import { agentbox, keptKey, keptUrl } from "./server.js";

const EVERY_BYTE = Uint8Array.from({ length: 256 }, (_, value) => value);
const server = { url: keptUrl, apiKey: keptKey };

let box: Sandbox;
let here: string;

before(async () => {
  box = await make({ memoryMb: 512, pids: 200, env: { NAME: "box" }, execTimeoutSeconds: 30 });
  here = await mkdtemp(join(tmpdir(), "agentbox-typescript-"));
});

after(async () => {
  await box.delete();
  await rm(here, { recursive: true });
});

function make(options: SandboxOptions = {}): Promise<Sandbox> {
  return Sandbox.create({ ...server, backend: "jail", ...options });
}

/** What a command ends with, when it does. */
async function ended(command: Command): Promise<[number | null, string]> {
  assert.ok(await command.wait(30));
  return [command.exitCode, await command.stdout()];
}

function repeated(bytes: Uint8Array, times: number): Uint8Array {
  const whole = new Uint8Array(bytes.length * times);
  for (let at = 0; at < times; at++) whole.set(bytes, at * bytes.length);
  return whole;
}

/** Asserts that it is an error of files with that errno and path. */
async function fails(work: Promise<unknown>, errno: string | RegExp, path?: string): Promise<void> {
  await assert.rejects(work, (error) => {
    assert.ok(error instanceof SandboxFileError, String(error));
    assert.match(error.errno, typeof errno === "string" ? new RegExp(`^${errno}$`) : errno);
    if (path !== undefined) assert.equal(error.path, path);
    return true;
  });
}

/** What `agentbox verify` says of a trace. */
async function verified(trace: AsyncIterable<Uint8Array>): Promise<{ exitCode: number | null; output: string }> {
  const [file, pem] = [join(here, "trace.jsonl"), join(here, "server.pem")];
  await writeFile(file, trace);
  await writeFile(pem, await new AgentboxClient(keptUrl, { apiKey: keptKey }).publicKey());
  const [command, ...words] = agentbox;
  const { status, stdout, stderr } = spawnSync(command as string, [...words, "verify", "--key", pem, file]);
  return { exitCode: status, output: `${stdout}${stderr}` };
}

// ---- commands

test("exec_of_a_text_gives_both_streams_and_the_exit_code", async () => {
  const done = await box.exec("echo out; echo err >&2; exit 3");
  assert.deepEqual([done.exitCode, done.running, done.ok], [3, false, false]);
  assert.equal(await done.stdout(), "out\nerr\n");
});

test("exec_of_words_keeps_stderr_apart_when_asked", async () => {
  const done = await box.exec(["sh", "-c", "echo out; echo err >&2"], { merged: false });
  assert.deepEqual([await done.stdout(), await done.stderr(), done.exitCode], ["out\n", "err\n", 0]);
});

test("a_program_that_is_not_there_is_an_error_with_errno_and_name", async () => {
  await fails(box.exec(["no-such-program"]), "ENOENT", "no-such-program");
  await assert.rejects(box.exec([]), InvalidRequestError);
  await assert.rejects(box.exec(["echo", "a\0b"]), InvalidRequestError);
});

test("a_signal_is_128_and_its_number", async () => {
  const done = await box.exec("kill -SEGV $$");
  assert.deepEqual([done.exitCode, done.signal], [139, 11]);
});

test("a_timeout_ends_the_command_and_is_said", async () => {
  const done = await box.exec("sleep 1000", { timeoutSeconds: 0.3 });
  assert.deepEqual([done.timedOut, done.running], [true, false]);
});

test("waiting_ends_nothing", async () => {
  const command = await box.exec("read x; echo done", { openStdin: true, waitSeconds: 0 });
  assert.deepEqual([command.running, command.exitCode], [true, null]);
  assert.equal(await command.wait(0.01), false);
  const over = new AbortController();
  const waiting = command.wait(30, { signal: over.signal });
  over.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await command.send("\n");
  assert.deepEqual(await ended(command), [0, "done\n"]);
});

test("stdin_is_read_to_its_end", async () => {
  for (const data of [repeated(EVERY_BYTE, 1200), new Uint8Array([97, 255]), new Uint8Array()]) {
    assert.deepEqual(await (await box.exec("cat", { stdin: data })).output(), data);
  }
  assert.equal((await box.exec("true", { stdin: repeated(EVERY_BYTE, 4000) })).exitCode, 0);
});

test("open_input_takes_pieces_until_it_is_closed", async () => {
  const command = await box.start("cat", { openStdin: true });
  await command.send("one ");
  await command.send(ReadableStream.from([new TextEncoder().encode("two")]));
  await command.closeStdin();
  assert.deepEqual(await ended(command), [0, "one two"]);
  await assert.rejects(command.send("three"), AgentboxHTTPError);
});

test("kill_ends_everything_that_a_command_started", async () => {
  const command = await box.start("sleep 1000 & setsid sleep 1000 & echo ready; wait");
  await command.more(0);
  assert.equal(await command.kill(), 0);
  assert.deepEqual([command.exitCode, command.running], [143, false]);
  assert.equal(await (await box.exec("pgrep -c sleep")).stdout(), "0\n");
});

test("a_signal_reaches_the_process_group", async () => {
  const command = await box.start("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done");
  await command.more(0);
  await command.sendSignal("SIGINT");
  assert.deepEqual(await ended(command), [7, "ready\ncaught\n"]);
});

test("a_terminal_has_a_size_which_can_change", async () => {
  const terminal = { rows: 24, columns: 80 };
  const command = await box.start("stty size; read line; stty size", { terminal, openStdin: true });
  await command.more(0);
  await command.resize(30, 100);
  await command.send("\n");
  const [, output] = await ended(command);
  assert.deepEqual(output.trim().split(/\s+/), ["24", "80", "30", "100"]);
});

test("directory_and_variables_are_the_commands_own", async () => {
  await box.files.makeDirectory("sub");
  assert.equal(await (await box.exec("pwd; echo $NAME", { cwd: "sub" })).stdout(), "/work/sub\nbox\n");
  const changed = await box.exec("echo ${NAME-none} $OTHER", { env: { NAME: null, OTHER: "x" } });
  assert.equal(await changed.stdout(), "none x\n");
});

test("output_is_read_by_offset", async () => {
  const done = await box.exec("printf 0123456789");
  const part = await done.read({ offset: 4, limit: 3 });
  assert.deepEqual([part.offset, part.total, new TextDecoder().decode(part.data)], [4, 10, "456"]);
  assert.equal((await done.read({ offset: 10 })).data.length, 0);
});

test("long_output_is_whole", async () => {
  const done = await box.exec("head -c 3000000 /dev/zero | tr '\\0' x");
  const output = await done.output();
  assert.equal(output.length, 3_000_000);
  assert.ok(output.every((byte) => byte === 120));
});

test("output_that_is_no_text_stays_as_it_is", async () => {
  assert.deepEqual(await (await box.exec("printf '\\377\\000\\376'")).output(), new Uint8Array([255, 0, 254]));
});

test("commands_run_at_the_same_time", async () => {
  // Each waits for the one after it: they end only when all of them run.
  const last = 7;
  await box.exec("mkdir -p turn; for n in 0 1 2 3 4 5 6 7; do mkfifo turn/$n; done");
  const scripts = Array.from({ length: last + 1 }, (_, n) =>
    n === last ? `echo go >turn/${n}; echo ${n}` : `read x <turn/${n + 1}; echo go >turn/${n}; echo ${n}`,
  );
  const running = scripts.map((script) => box.exec(script, { timeoutSeconds: 30 }));
  assert.equal(await (await box.exec("cat turn/0", { timeoutSeconds: 30 })).stdout(), "go\n");
  const said = await Promise.all(running.map(async (one) => (await one).stdout()));
  assert.deepEqual(said, scripts.map((_, n) => `${n}\n`));
});

test("what_a_background_process_writes_later_is_kept", async () => {
  await box.exec("mkfifo later");
  const command = await box.exec("(read x <later; echo later) & echo now");
  assert.equal(await command.stdout(), "now\n");
  await box.exec("echo go >later");
  assert.ok(await command.more(4));
  assert.equal(await command.stdout(), "now\nlater\n");
});

test("output_comes_as_it_is_written", async () => {
  const command = await box.start("echo one; read x; echo two >&2", { openStdin: true, merged: false });
  const found: [string, string][] = [];
  for await (const { kind, text } of command.stream()) {
    found.push([kind, text]);
    if (kind === "stdout") await command.send("\n");
  }
  assert.deepEqual(found, [["stdout", "one\n"], ["stderr", "two\n"]]);
  assert.deepEqual([command.running, command.exitCode], [false, 0]);
});

test("streamed bytes are exact, also from an offset on", async () => {
  const command = await box.start("printf 'é\\377'; echo err >&2; read x; echo end; exit 5", {
    merged: false,
    openStdin: true,
  });
  const seen = { stdout: [] as number[], stderr: [] as number[] };
  for await (const event of command.stream()) {
    if (event.kind === "stderr") await command.send("\n");
    seen[event.kind].push(...event.data);
  }
  assert.deepEqual(seen.stdout, [0xc3, 0xa9, 0xff, ...Buffer.from("end\n")]);
  assert.deepEqual(seen.stderr, [...Buffer.from("err\n")]);
  assert.equal(command.exitCode, 5);
  let rest = "";
  for await (const event of command.stream({ offset: 3 })) if (event.kind === "stdout") rest += event.text;
  assert.equal(rest, "end\n");
});

// ---- files

test("a_file_comes_back_as_it_was_written", async () => {
  const content = repeated(EVERY_BYTE, 1000);
  await box.files.write("made/for/it.bin", content, { mode: 0o640 });
  assert.deepEqual(await box.files.read("made/for/it.bin"), content);
  const { path, kind, size, mode } = await box.files.info("made/for/it.bin");
  assert.deepEqual([path, kind, size, mode], ["/work/made/for/it.bin", "file", 256_000, 0o640]);
  await box.files.write("text", "ümläut\n");
  assert.equal(await box.files.readText("text"), "ümläut\n");
});

test("a_file_is_appended_to_or_new", async () => {
  const encode = (text: string) => new TextEncoder().encode(text);
  await box.files.write("grows", "one", { how: "new" });
  await box.files.write("grows", ReadableStream.from([encode(" two"), encode(" three")]), { how: "append" });
  assert.equal(await box.files.readText("grows"), "one two three");
  await fails(box.files.write("grows", "four", { how: "new" }), "EEXIST", "/work/grows");
});

test("errors_of_files_are_those_of_local_files", async () => {
  await fails(box.files.read("nothing"), "ENOENT", "/work/nothing");
  await box.files.makeDirectory("directory");
  await fails(box.files.read("directory"), "EISDIR");
  await fails(box.files.write("/proc/nothing", "x"), /./, "/proc/nothing");
  await box.files.write("a-file", "x");
  await fails(box.files.info("a-file/below"), /^ENOTDIR|ENOENT$/);
});

test("a_directory_is_listed_without_following_links", async () => {
  await box.exec("mkdir -p seen/below; echo 1 >seen/file; echo 2 >seen/below/file; ln -s /etc/passwd seen/link");
  const found = await box.files.list("seen");
  assert.deepEqual(
    found.map(({ name, kind }) => [name, kind]),
    [["below", "directory"], ["file", "file"], ["link", "link"]],
  );
  assert.equal(found[2]?.target, "/etc/passwd");
  const all = await box.files.list("seen", { depth: -1 });
  assert.ok(all.some(({ path }) => path === "/work/seen/below/file"));
  assert.equal((await box.files.info("seen/link")).kind, "link");
  await fails(box.files.list("unseen"), "ENOENT");
});

test("directories_are_made_names_changed_things_removed", async () => {
  await box.files.makeDirectory("x/y");
  await box.files.makeDirectory("x/y");
  await box.files.rename("x/y", "x/z");
  assert.deepEqual([await box.files.exists("x/y"), await box.files.exists("x/z")], [false, true]);
  await box.files.remove("x");
  assert.equal(await box.files.exists("x"), false);
  await fails(box.files.remove("x"), "ENOENT");
});

test("a_part_of_a_file_is_read", async () => {
  await box.files.write("digits", "0123456789");
  assert.deepEqual(await box.files.read("digits", { offset: 2, length: 5 }), new TextEncoder().encode("23456"));
  let rest = "";
  for await (const piece of box.files.stream("digits", { offset: 7 })) rest += new TextDecoder().decode(piece);
  assert.equal(rest, "789");
  await fails(box.files.read("digits", { maxBytes: 5 }), "EFBIG", "/work/digits");
});

test("a_file_travels_with_its_mode", async () => {
  const [source, target] = [join(here, "source"), join(here, "target")];
  const content = randomBytes(2_000_000);
  await writeFile(source, content);
  await chmod(source, 0o755);
  assert.equal(await box.files.upload(source, "tool"), 2_000_000);
  assert.equal((await box.files.info("tool")).mode, 0o755);
  assert.equal(await box.files.download("tool", target), 2_000_000);
  assert.ok(content.equals(await readFile(target)));
  await assert.rejects(box.files.download("tool", target), { code: "EEXIST" });
});

test("a_directory_travels_without_its_links", async () => {
  const [tree, place] = [join(here, "tree"), join(here, "copied")];
  const long = "long".repeat(40);
  await mkdir(join(tree, "empty"), { recursive: true });
  await mkdir(join(tree, "deep", long), { recursive: true });
  await writeFile(join(tree, "deep", long, "file"), "x".repeat(700));
  await writeFile(join(tree, "run.sh"), "echo run", { mode: 0o755 });
  await symlink("/etc/hostname", join(tree, "link"));
  assert.equal(await box.files.upload(tree, "tree"), 708);
  assert.equal(await (await box.exec("cd tree; ls; ./run.sh")).stdout(), "deep\nempty\nrun.sh\nrun\n");
  await box.exec("ln -s /etc/passwd tree/inside; mkfifo tree/pipe");
  assert.equal(await box.files.download("tree", place), 708);
  const found = (await readdir(place, { recursive: true })).sort();
  assert.deepEqual(found, ["deep", `deep/${long}`, `deep/${long}/file`, "empty", "run.sh"]);
  assert.equal(await readFile(join(place, "run.sh"), "utf8"), "echo run");
});

test("names_may_be_any_but_a_zero_byte", async () => {
  const names = ["with blank", "umläut ☃", "new\nline", "-n", "?a=b&c#d%20"];
  for (const name of names) await box.files.write(`names/${name}`, name);
  const raw = Buffer.from("/work/names/no \xff utf-8", "latin1");
  await box.files.write(raw, "raw");
  const found = await box.files.list("names");
  assert.deepEqual(
    found.filter(({ pathBytes }) => !pathBytes).map(({ name }) => name),
    names.sort(),
  );
  assert.deepEqual(
    found.filter(({ pathBytes }) => pathBytes).map(({ pathBytes }) => Buffer.from(pathBytes ?? [])),
    [raw],
  );
  for (const name of names) assert.equal(await box.files.readText(`names/${name}`), name);
  assert.equal(await box.files.readText(raw), "raw");
  await assert.rejects(box.files.read("a\0b"), TypeError);
});

// ---- tools for models

test("shell_tools_answer_in_the_known_texts", async () => {
  assert.equal(await box.shellExec("echo hello"), "exit=0\noutput:\nhello\n");
  const going = await box.shellExec("echo a; sleep 1000", 0.3);
  assert.match(going, /^still running after 0\./);
  assert.match(going, /; produced 2 new characters of output\noutput so far:\na\n/);
  assert.match(going, /Use shell_wait to keep waiting or shell_kill to stop it\.$/);
  assert.match(await box.shellExec("true"), /^ERROR: a command has been running for /);
  assert.match(await box.shellWait(0.1), /; no new output for /);
  assert.match(await box.shellKill(), /^killed \(exit=143\)\n\[SIGTERM after /);
  assert.equal(await box.shellWait(), "ERROR: no command is currently running");
  assert.equal(await box.dispatch("shell_exec", { command: "exit 4" }), "exit=4\noutput:\n");
});

test("dispatch_answers_every_tool", async () => {
  await box.dispatch("bash", { command: "cd /tmp; X=1" });
  assert.equal(await box.dispatch("bash", { command: "pwd; echo $X" }), "/tmp\n1\n");
  assert.equal(await box.dispatch("bash", { restart: true }), "tool has been restarted.");
  const edit = (input: Record<string, unknown>) => box.dispatch("str_replace_based_edit_tool", input);
  const made = await edit({ command: "create", path: "/work/e", file_text: "a\nb\n" });
  assert.equal(made, "File created successfully at: /work/e");
  await edit({ command: "str_replace", path: "/work/e", old_str: "b", new_str: "c" });
  assert.equal(await edit({ command: "view", path: "/work/e" }), "     1\ta\n     2\tc");
  assert.equal(await box.dispatch("nothing", {}), "ERROR: unknown tool 'nothing'");
});

// ---- its life

test("reset_keeps_files_and_ends_processes", async () => {
  await box.files.write("kept", "work");
  const command = await box.start("sleep 1000");
  await box.reset();
  assert.ok(await command.wait(30));
  assert.ok(command.lost);
  assert.equal(await box.files.readText("kept"), "work");
  assert.equal(await (await box.exec("pgrep -c sleep")).stdout(), "0\n");
});

test("a_box_whose_processes_are_killed_goes_on", async () => {
  const killed = await box.exec("kill -9 -1");
  assert.equal(killed.running, false);
  assert.ok(killed.lost || killed.signal === 9);
  assert.equal(await (await box.exec("echo on")).stdout(), "on\n");
});

test("a_box_says_what_holds", () => {
  assert.equal(box.backend, "jail");
  const { filesystem, network, memory, pids } = box.enforcement;
  assert.ok(![filesystem, network, memory, pids].includes("none"));
});

test("a_box_that_is_gone_is_an_error_until_reset", async () => {
  await using brief = await make({ maxLifetimeSeconds: 1 });
  await brief.files.write("kept", "work");
  while (!(await brief.shellExec("sleep 0.2")).startsWith("ERROR: sandbox is gone"));
  assert.match(await brief.shellExec("true"), /^ERROR: sandbox is gone: its lifetime of 1 s is over/);
  await assert.rejects(brief.exec("true"), (error) => error instanceof SandboxGoneError && /lifetime/.test(error.detail));
  await assert.rejects(brief.files.read("kept"), SandboxGoneError);
  await brief.reset();
  assert.equal(await brief.files.readText("kept"), "work");
});

test("what_a_policy_denies_is_told", async () => {
  await assert.rejects(make({ policy: "nett: a.example\n" }), (error) => {
    assert.ok(error instanceof PolicySyntaxError);
    assert.equal(error.fault.line, 1);
    return true;
  });
  await using narrow = await make({ policy: "net: allowed.example:443\n" });
  const connect = "import socket; socket.create_connection(('denied.example', 443), 5)";
  assert.equal((await narrow.exec(["python3", "-c", connect])).exitCode, 1);
  assert.ok((await narrow.refresh()).denials.some(({ target }) => target.includes("denied.example")));
});

test("a_snapshot_brings_files_back", async () => {
  await using changed = await make();
  await changed.files.write("f", "one");
  const { snapshot_id: snapshotId } = await changed.snapshot();
  await changed.files.write("f", "two");
  await changed.files.makeDirectory("more");
  await changed.restore(snapshotId);
  assert.equal(await changed.files.readText("f"), "one");
  assert.equal(await changed.files.exists("more"), false);
  const names = async () => (await changed.snapshots()).map((one) => one.snapshot_id);
  assert.ok((await names()).includes(snapshotId));
  await changed.deleteSnapshot(snapshotId);
  assert.ok(!(await names()).includes(snapshotId));
});

test("forks_have_the_files_and_go_their_own_ways", async () => {
  await using first = await make();
  await first.files.write("f", "one");
  const forks = await first.fork(2);
  for (const [number, fork] of forks.entries()) {
    assert.equal(await fork.files.readText("f"), "one");
    await fork.files.write("f", `fork ${number}`);
  }
  const said = await Promise.all([first, ...forks].map((one) => one.files.readText("f")));
  assert.deepEqual(said, ["one", "fork 0", "fork 1"]);
  await Promise.all(forks.map((fork) => fork.stop()));
});

test("a_box_pauses_where_its_backend_can", async () => {
  await using held = await make();
  const command = await held.start("while :; do echo x; sleep 0.01; done");
  await command.more(0);
  try {
    await held.pause();
  } catch (error) {
    assert.ok(error instanceof InvalidRequestError, String(error));
    assert.match(error.message, /pause/);
    return;
  }
  assert.equal((await held.refresh()).info.status, "paused");
  const { total } = await command.read();
  const { total: later } = await command.read({ offset: total, waitSeconds: 0.5 });
  assert.equal(later, total);
  await held.resume();
  assert.ok(await command.more(total));
});

test("a_trace_can_be_taken_and_verified", async () => {
  await using traced = await make();
  await traced.exec("echo traced");
  // The sandbox goes on, so that its trace has no end yet.
  const { exitCode, output } = await verified(traced.trace());
  assert.match(output, /hash chain verified/);
  assert.equal(exitCode, 5, output);
});

test("a_sandbox_that_does_not_run_says_so", async () => {
  const brief = await make();
  await brief.stop();
  await brief.stop();
  await assert.rejects(brief.exec("true"), (error) => {
    return error instanceof AgentboxError && error.message === "sandbox is not running";
  });
  await assert.rejects(brief.files.read("x"), /sandbox is not running/);
  assert.equal(await brief.shellExec("true"), "ERROR: sandbox is not running");
});

test("another_client_finds_the_sandbox_and_its_commands", async () => {
  const first = await make({ keep: true });
  await first.files.write("memo", "mine");
  const { id: commandId } = await first.start("echo found");
  await first.stop();
  assert.ok((await Sandbox.list(server)).some(({ id }) => id === first.id));
  const second = await Sandbox.attach(first.id, server);
  assert.equal(await second.files.readText("memo"), "mine");
  assert.deepEqual(
    (await second.commands()).map(({ id }) => id),
    [commandId],
  );
  assert.deepEqual(await ended(await second.command(commandId)), [0, "found\n"]);
  await second.stop();
  await (await Sandbox.attach(first.id, server)).delete();
  await assert.rejects(Sandbox.attach(first.id, server), SandboxGoneError);
});
