# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Ways around the shim of a Node process, tried where nothing else stands in the way."""

from __future__ import annotations

import socket

import pytest

from tests.unit.guest.conftest import SECRET
from tests.unit.guest.guarded import Host

POLICY = "read: ./data\nwrite: ./out\nexec: echo\nnet: 127.0.0.1:9\n"
BEFORE = "const fs = require('fs'), c = require('child_process'), net = require('net'); const S = {secret!r};\n"

READS = {
    "hard_link": "fs.linkSync(S, 'out/h'); console.log(fs.readFileSync('out/h', 'utf8'))",
    "symbolic_link": "fs.symlinkSync(S, 'out/s'); console.log(fs.readFileSync('out/s', 'utf8'))",
    "binding": "const b = process.binding('fs'); console.log(b.open(S, 0, 0o666))",
    "linked_binding": "console.log(process._linkedBinding('fs'))",
    "shell_behind_a_word": "console.log(String(c.execSync('echo x; cat ' + S)))",
    "shell_option": "console.log(String(c.spawnSync('echo', ['x; cat ' + S], { shell: true }).stdout))",
    "process_object": (
        "const p = new c.ChildProcess(); p.spawn({ file: '/bin/cat', args: ['cat', S], stdio: ['ignore', 1, 2] });"
    ),
    "call_while_another_waits": "fs.promises.stat('data'); fs.readFile('data/a.txt', () => {}); console.log(fs.readFileSync(S, 'utf8'))",
    "url": "console.log(fs.readFileSync(new URL('file://' + S), 'utf8'))",
    "buffer": "console.log(fs.readFileSync(Buffer.from(S), 'utf8'))",
    "buffer_that_changes": (
        "class B extends Uint8Array { toString() { return 'data/a.txt' } }"
        "console.log(fs.readFileSync(new B(Buffer.from(S)), 'utf8'))"
    ),
    "options_with_a_getter": (
        "console.log(fs.readFileSync('data/a.txt', { get encoding() { throw Error(fs.readFileSync(S, 'utf8')) } }))"
    ),
    "file_system_of_the_caller": "fs.createReadStream(S, { fs: undefined }).on('data', (d) => console.log(String(d)))",
    "names_of_a_directory": "console.log(fs.readdirSync(require('path').dirname(S)))",
    "opendir": "console.log(fs.opendirSync(require('path').dirname(S)).readSync().name)",
    "dlopen": "process.dlopen({ exports: {} }, S); console.log('loaded')",
    "debugger": "const s = new (require('inspector').Session)(); s.connect(); console.log(typeof s)",
    "web_assembly": "new (require('wasi').WASI)({ version: 'preview1', preopens: { '/': '/' } }); console.log('loaded')",
    "python_without_its_guard": "console.log(c.spawnSync('python3', ['-I', '-c', `print(open('${S}').read())`]).stdout.toString())",
    "node_without_its_guard": (
        "console.log(String(c.execFileSync(process.execPath, ['-e', `console.log(fs.readFileSync('${S}', 'utf8'))`], { env: {} })))"
    ),
    "worker_without_options": (
        "new (require('worker_threads').Worker)(`console.log(require('fs').readFileSync('${S}', 'utf8'))`,"
        " { eval: true, execArgv: [], env: {} }).on('error', () => {})"
    ),
    "copy": "fs.copyFileSync(S, 'out/c'); fs.cpSync(S, 'out/d'); console.log(fs.readFileSync('out/c', 'utf8'))",
    "directory_changed_through_a_link": (
        "fs.symlinkSync('../data', 'out/l'); process.chdir('out/l'); console.log(fs.readFileSync('../../outside/secret.txt'))"
    ),
}

CHANGES = {
    "chmod": "fs.chmodSync(S, 0)",
    "unlink": "fs.unlinkSync(S)",
    "rm": "fs.rmSync(S)",
    "rename": "fs.renameSync(S, 'out/x')",
    "append": "fs.appendFileSync(S, 'x')",
    "stream": "fs.createWriteStream(S).end('x').on('error', (e) => { throw e })",
    "truncate": "fs.truncateSync(S)",
    "directory": "fs.mkdirSync(S + '.d')",
    "open": "fs.openSync(S, 'r+')",
    "flags": "fs.openSync(S, fs.constants.O_RDWR | fs.constants.O_TRUNC)",
    "link_outwards": "fs.writeFileSync('out/x', ''); fs.linkSync('out/x', S + '.l')",
    "utimes": "fs.utimesSync(S, 1, 1)",
}

SENDS = {
    "connect": "net.connect(PORT, '127.0.0.1')",
    "options": "let n = 0; net.connect({ host: '127.0.0.1', get port() { return n++ ? PORT : 9 } }).on('error', () => {}); net.connect(PORT)",
    "http": "require('http').get({ host: '127.0.0.1', port: PORT })",
    "fetch": "fetch(`http://127.0.0.1:${PORT}/`).catch((e) => { throw e })",
    "datagram": "require('dgram').createSocket('udp4').send('x', PORT, '127.0.0.1')",
    "lookup": "require('dns').lookup('evil.invalid', () => {})",
    "own_lookup": (
        "net.connect({ host: 'a.invalid', port: PORT, lookup: (h, o, cb) => cb(null, o.all ? [{ address: '127.0.0.1', family: 4 }]"
        " : '127.0.0.1', 4) })"
    ),
    "server": "net.createServer().listen(0, '0.0.0.0', () => console.log('LISTENS'))",
}


@pytest.mark.parametrize("trick", READS)
def test_blocks_reading_by(host: Host, node: str, trick: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    policy = POLICY + (
        "exec: python3\n" if trick.startswith("python") else f"exec: {node}\n" * trick.startswith("node")
    )
    done = host.run(policy, [node, "-e", BEFORE.format(secret=secret) + READS[trick]])
    assert SECRET not in done.stdout + done.stderr
    assert "secret.txt" not in done.stdout
    assert "loaded" not in done.stdout
    assert done.exit_code in (0, 1), done.stderr


@pytest.mark.parametrize("trick", CHANGES)
def test_blocks_changing_by(host: Host, node: str, trick: str) -> None:
    outside = host.base / "outside"
    secret = outside / "secret.txt"
    before = (secret.read_text(), secret.stat().st_mtime, secret.stat().st_mode)
    done = host.run(POLICY, [node, "-e", BEFORE.format(secret=str(secret)) + CHANGES[trick]])
    assert [path.name for path in outside.iterdir()] == ["secret.txt"]
    assert (secret.read_text(), secret.stat().st_mtime, secret.stat().st_mode) == before
    assert "agentbox: policy denies" in done.stderr
    assert done.of("deny", "write")


@pytest.mark.parametrize("trick", SENDS)
def test_blocks_sending_by(host: Host, node: str, trick: str) -> None:
    with socket.socket() as listener, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        listener.listen()
        datagrams.bind(("127.0.0.1", port))
        listener.setblocking(False)
        datagrams.setblocking(False)
        done = host.run(POLICY, [node, "-e", BEFORE.format(secret="") + f"const PORT = {port};\n" + SENDS[trick]])
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(9)
    assert "LISTENS" not in done.stdout
    assert done.of("deny", "net"), done.stderr
