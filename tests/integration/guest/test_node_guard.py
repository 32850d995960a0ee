# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""What a guarded Node program notices, and what its host hears."""

from __future__ import annotations

import base64
import hashlib

import pytest

from tests.integration.guest.conftest import SECRET
from tests.integration.guest.guarded import Host

POLICY = "read: ./data\nwrite: ./out\nexec: echo\n"


def test_denial_says_what_the_policy_denies(host: Host, node: str) -> None:
    done = host.run(POLICY, [node, "-e", "require('fs').readFileSync('/etc/passwd')"], wall="jail")
    assert "AgentboxPolicyError: agentbox: policy denies read /etc/passwd" in done.stderr
    assert done.of("deny", "read") == [{"target": "/etc/passwd", "enforced": True}]


def test_read_is_recorded_once_with_its_hash(host: Host, node: str) -> None:
    done = host.run(POLICY, [node, "-e", "console.log(require('fs').readFileSync('data/a.txt', 'utf8'))"])
    assert done.stdout == "hello\n", done.stderr
    digest = hashlib.sha256(b"hello").hexdigest()
    assert done.of("observe") == [{"path": f"{host.project}/data/a.txt", "sha256": digest}]


@pytest.mark.parametrize(
    "text",
    [
        "fs.readFile(S, (e) => console.log(e.message))",
        "fs.promises.readFile(S).catch((e) => console.log(e.message))",
        "fs.createReadStream(S).on('error', (e) => console.log(e.message))",
        "fs.open(S, (e) => console.log(e.message))",
        "import('node:fs/promises').then((m) => m.open(S)).catch((e) => console.log(e.message))",
        "new (require('worker_threads').Worker)(`try { require('fs').readFileSync(${JSON.stringify(S)}) } "
        "catch (e) { console.log(e.message) }`, { eval: true, execArgv: [], env: {} })",
    ],
)
def test_error_comes_where_the_program_expects_it(host: Host, node: str, text: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    code = f"const fs = require('fs'); const S = {secret!r}; {text}"
    done = host.run(POLICY, [node, "-e", code])
    assert done.stdout == f"agentbox: policy denies read {secret}\n", done.stderr


def test_quiet_of_one_call_is_not_the_quiet_of_another(host: Host, node: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    code = (
        f"const fs = require('fs'); const S = {secret!r};"
        "fs.promises.readFile('data/a.txt').then(() => console.log('read'));"
        "fs.readFile('data/a.txt', () => {});"
        "try { console.log(fs.readFileSync(S, 'utf8')) } catch (e) { console.log('no') }"
        "try { fs.cpSync('data', 'out/d', { recursive: true, filter: () => { "
        "try { console.log(fs.readFileSync(S, 'utf8')) } catch { console.log('no') } return false } }) } catch {}"
    )
    done = host.run(POLICY, [node, "-e", code])
    assert SECRET not in done.stdout
    assert done.stdout.split() == ["no", "no", "read"], done.stderr


def test_writes_wait_for_the_host(host: Host, node: str) -> None:
    host.refuses = frozenset({"fs.open_write"})
    done = host.run(POLICY, [node, "-e", "require('fs').writeFileSync('out/x', '1')"])
    assert "agentbox: the host says no" in done.stderr
    assert not (host.project / "out" / "x").exists()


def test_programs_are_judged_by_the_file_that_runs(host: Host, node: str) -> None:
    code = (
        "const c = require('child_process');"
        "console.log(c.execFileSync('echo', ['a'], { encoding: 'utf8' }).trim());"
        "for (const f of [() => c.execSync('echo x; cat secret.txt'), () => c.spawnSync('echo', ['a'], { shell: true }),"
        " () => c.spawnSync('/bin/cat', ['secret.txt'], { argv0: 'echo' })]) {"
        "  try { console.log(String(f().stdout)) } catch (e) { console.log(e.name) } }"
    )
    done = host.run(POLICY, [node, "-e", code])
    assert done.stdout.split() == ["a", *["AgentboxPolicyError"] * 3], done.stderr
    assert [args["argv"] for args in done.of("observe", "proc.spawn")] == [["echo", "a"]]


def test_connection_is_judged_by_host_and_port(host: Host, node: str) -> None:
    code = (
        "const net = require('net');"
        "for (const port of [9, 10]) {"
        "  try { net.connect(port, '127.0.0.1').on('error', (e) => console.log(port, e.code)) }"
        "  catch (e) { console.log(port, e.message) } }"
        "try { require('dgram').createSocket('udp4').send('x', 9, '10.0.0.1') } catch (e) { console.log(e.message) }"
        "try { require('dns').lookup('evil.test', () => {}) } catch (e) { console.log(e.message) }"
    )
    done = host.run("net: 127.0.0.1:9\n", [node, "-e", code])
    assert sorted(done.stdout.splitlines()) == [
        "10 agentbox: policy denies net 127.0.0.1:10",
        "9 ECONNREFUSED",
        "agentbox: policy denies net 10.0.0.1:9",
        "agentbox: policy denies net evil.test",
    ], done.stderr


def test_fetch_and_http_work_where_they_are_granted(host: Host, node: str) -> None:
    code = (
        "require('http').createServer((q, s) => s.end('served')).listen(0, '127.0.0.1', async function () {"
        "  const r = await fetch(`http://127.0.0.1:${this.address().port}/`); console.log(await r.text()); process.exit() })"
    )
    done = host.run("net: 127.0.0.1\n", [node, "-e", code])
    assert done.stdout == "served\n", done.stderr


def test_policy_may_come_as_text(host: Host, node: str) -> None:
    text = host.base / "agentbox.policy"
    text.write_text(POLICY + "include: more.policy\n")
    (host.base / "more.policy").write_text("read: ./more\n")
    (host.project / "more").write_text("more")
    code = (
        "const fs = require('fs'); console.log(fs.readFileSync('data/a.txt', 'utf8'), fs.readFileSync('more', 'utf8'));"
        "console.log(String(require('child_process').execFileSync('echo', ['x'])).trim());"
        "try { fs.readFileSync('secret.txt') } catch (e) { console.log(e.message) }"
    )
    done = host.run(POLICY, [node, "-e", code], variables={"AGENTBOX_POLICY": str(text)})
    assert done.stdout.splitlines() == [
        "hello more",
        "x",
        f"agentbox: policy denies read {host.project}/secret.txt",
    ], done.stderr


def test_fault_of_a_policy_as_text_is_told_with_its_place(host: Host, node: str) -> None:
    text = host.base / "agentbox.policy"
    text.write_text("read: ./data\nraed: ./x\n")
    done = host.run(POLICY, [node, "-e", "console.log('ran')"], variables={"AGENTBOX_POLICY": str(text)})
    assert (done.exit_code, done.stdout) == (70, "")
    assert f"refusing to run: {text}:2:1: unknown key 'raed'" in done.stderr


def test_options_of_the_user_are_kept(host: Host, node: str) -> None:
    code = "console.log(Error.stackTraceLimit); require('fs').readFileSync('secret.txt')"
    options = host.environment(NODE_OPTIONS="--stack-trace-limit=7")
    done = host.run(POLICY, [node, "-e", code], base=options)
    assert done.stdout == "7\n"
    assert "agentbox: policy denies read" in done.stderr


def test_modules_are_found_and_recorded_where_rules_grant_them(host: Host, node: str) -> None:
    (host.project / "data" / "m.mjs").write_text("export default 'module'")
    (host.project / "data" / "j.json").write_text('"json"')
    code = (
        "import('./data/m.mjs').then((m) => console.log(m.default));"
        "console.log(require('module').createRequire(process.cwd() + '/x')('./data/j.json'))"
    )
    done = host.run(POLICY, [node, "-e", code])
    assert sorted(done.stdout.split()) == ["json", "module"], done.stderr


def test_looking_at_what_is_granted_tells_the_truth(host: Host, node: str) -> None:
    code = (
        "const fs = require('fs'); console.log(fs.statSync('data').isDirectory(), fs.existsSync('data/a.txt'),"
        " fs.existsSync('data/none'), fs.statSync('/').isDirectory(), fs.existsSync(__filename));"
        "try { fs.statSync('secret.txt') } catch (e) { console.log(e.code, e.syscall, e.path) }"
        "fs.promises.stat('data/a.txt').then((s) => console.log(s.size)); fs.access('secret.txt', (e) => console.log(e.code))"
    )
    done = host.run(POLICY, [node, "-e", code])
    lines = done.stdout.splitlines()
    assert lines[0] == "true true false true false"
    assert lines[1] == "ENOENT stat secret.txt"
    assert sorted(lines[2:]) == ["5", "ENOENT"], done.stderr
    assert {args["target"] for args in done.of("deny", "read")} >= {f"{host.project}/secret.txt"}


def test_names_that_are_no_text_are_the_files_that_they_are(host: Host, node: str) -> None:
    code = (
        "const fs = require('fs'), b = Buffer.from([...Buffer.from('out/'), 0xff, 0x61]); fs.writeFileSync(b, 'raw');"
        "console.log(fs.readFileSync(b, 'utf8'), fs.existsSync(b));"
        "try { fs.readFileSync(Buffer.concat([Buffer.from('../'), Buffer.of(0xff)])) } catch (e) { console.log(e.name) }"
    )
    done = host.run(POLICY, [node, "-e", code])
    assert done.stdout.splitlines() == ["raw true", "AgentboxPolicyError"], done.stderr
    written = done.of("observe", "fs.open_write")[0]["path"]
    assert base64.b64decode(written["b64"]) == f"{host.project}/out/".encode() + b"\xffa"


@pytest.mark.parametrize("name", ["AGENTBOX_POLICY", "AGENTBOX_CHANNEL"])
def test_guard_that_cannot_arm_lets_nothing_run(host: Host, node: str, name: str) -> None:
    done = host.run(POLICY, [node, "-e", "console.log('ran')"], variables={name: "/nowhere"})
    assert done.exit_code == 70
    assert done.stdout == ""
    assert done.stderr.startswith("agentbox: failed to arm sandbox, refusing to run: ")


def test_python_that_node_starts_is_guarded_too(host: Host, node: str) -> None:
    code = (
        "const c = require('child_process');"
        "console.log(c.spawnSync('python3', ['-c', 'open(\"/etc/passwd\")'], { encoding: 'utf8' }).stderr)"
    )
    done = host.run(POLICY + "exec: python3\n", [node, "-e", code])
    assert "agentbox: policy denies read /etc/passwd" in done.stdout, done.stdout + done.stderr
