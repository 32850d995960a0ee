# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Ways around Node's guard that only the box stands before, and every way when there is no guard at all."""

from __future__ import annotations

import json

import pytest

from tests.adversarial.escape.canaries import Canaries
from tests.policy_run import Project, has_program

pytestmark = [pytest.mark.linux, pytest.mark.skipif(not has_program("node"), reason="there is no node")]

# S is a file outside the policy, D its directory, PORT and UDP listeners of the host.
FOOLED = "Map.prototype.has = function () { return this.size > 0 }; Map.prototype.get = function () { return this.size ? {} : undefined };"
WAYS = {
    "fooled_guard": f"{FOOLED} console.log(fs.readFileSync(S, 'utf8'))",
    "handle_below_a_socket": (
        "const s = new net.Socket(); Object.defineProperty(Object.prototype, 'oncomplete', { configurable: true, set(v) {"
        " delete Object.prototype.oncomplete; const R = this.constructor, h = new (s._handle.constructor)(0);"
        " try { h.connect(new R(), '127.0.0.1', PORT) } catch {} Object.defineProperty(this, 'oncomplete', { value: v }) } });"
        "s.on('error', () => 0); s.connect({ port: 9, host: '127.0.0.1' })"
    ),
    "engine": "require('crypto').setEngine(S)",
    "native_code_of_the_guest": "fs.writeFileSync('out/x.node', 'x'); process.dlopen({ exports: {} }, process.cwd() + '/out/x.node')",
    "bindings": "for (const b of ['fs', 'spawn_sync', 'process_wrap', 'tcp_wrap', 'contextify']) try { process.binding(b) } catch {}"
    " console.log(process.binding('fs').internalModuleReadJSON?.(S))",
    "module": "import(S).catch((e) => console.log(e.code))",
    "module_data": "import(S, { with: { type: 'json' } }).catch((e) => console.log(e.message))",
    "existence": "console.log(fs.existsSync(D), fs.statSync(S).size)",
    "list": "console.log(fs.readdirSync(D))",
    "hard_link": "fs.linkSync(S, 'out/h'); console.log(fs.readFileSync('out/h', 'utf8'))",
    "report": "process.report.writeReport(D + '/planted')",
    "heap": "require('v8').writeHeapSnapshot(D + '/planted')",
    "trace": "require('v8').setFlagsFromString(`--logfile=${D}/planted`); require('v8').setFlagsFromString('--log-all')",
    "datagram": "require('dgram').createSocket('udp4').send('x', UDP, '127.0.0.1', () => process.exit())",
    "name_server": (
        "const r = new (require('dns').Resolver)({ timeout: 100, tries: 1 }); r.setServers([`127.0.0.1:${UDP}`]);"
        " r.resolve4('a.test', () => process.exit())"
    ),
    "replaced_process": "process.execve('/bin/cat', ['echo', S], {})",
    "object_spawn": "new (c.ChildProcess)().spawn({ file: '/bin/cat', args: ['echo', S], stdio: 'inherit' })",
    "shell": "console.log(String(c.execSync('echo x; cat ' + S)))",
}  # fmt: skip


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "without_guard"])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_gained_by(project: Project, canary: Canaries, way: str, guarded: bool) -> None:
    known = canary.known
    told = {"S": known["canary"], "D": known["canary_directory"], "PORT": known["tcp_port"], "UDP": known["udp_port"]}
    names = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in told.items())
    code = (
        f"const fs = require('fs'), c = require('child_process'), net = require('net');\n{names}"
        f"try {{ {WAYS[way]} }} catch (error) {{ console.log(error.code) }}"
    )
    project.policy("read: ./data", "write: ./out", "exec: echo", "exec: env", "exec: node")
    before = [] if guarded else ["env", "-u", "NODE_OPTIONS", "-u", "PYTHONPATH"]
    there = sorted(canary.directory.iterdir())
    done = project.run(*before, "node", "-e", code)
    assert canary.secret not in done.text, done.text
    assert canary.touched() == []
    assert sorted(canary.directory.iterdir()) == there
    assert project.verdict()[0] == 0


def test_denials_of_node_are_in_the_trace_with_the_file_that_was_meant(project: Project) -> None:
    (project.directory / "data" / "link").symlink_to("/etc/passwd")
    done = project.run(
        "node", "-e", "require('fs').readFile('data/link', (e) => console.log(e.name, e.code, e.message))"
    )
    assert "AgentboxPolicyError EACCES agentbox: policy denies read /etc/passwd\n" in done.text
    assert done.denials("read", "guest") == ["/etc/passwd"]
