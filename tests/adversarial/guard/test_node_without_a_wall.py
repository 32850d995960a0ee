# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Ways around the shim of a Node process, tried where nothing else stands in the way."""

from __future__ import annotations

import pytest

from tests.adversarial.guard.conftest import unchanged, unheard
from tests.integration.guest.conftest import SECRET
from tests.integration.guest.guarded import Host

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
    "import": "import(S.replace('secret.txt', 'm.mjs')).then((m) => console.log(m.default), () => {})",
    "import_of_data": "import(S.replace('secret.txt', 'j.json'), { with: { type: 'json' } }).then((m) => console.log(m.default), () => {})",
    "import_in_a_worker": (
        "new (require('worker_threads').Worker)(`import('${S.replace('secret.txt', 'm.mjs')}').then((m) => console.log(m.default), () => {})`,"
        " { eval: true })"
    ),
    "require_of_a_place_of_its_own": (
        "console.log(require('module').createRequire(S)('./j.json'), module.constructor._load(S.replace('secret.txt', 'j.json')))"
    ),
    "module_below": "for (const m of ['wasi', 'sqlite']) import(`node:${m}`).then((m) => console.log('loaded'), () => {})",
    "built_in_below": "process.getBuiltinModule('sqlite'); console.log('loaded')",
    "object_like_a_url": (
        "console.log(fs.readFileSync({ href: 'file:', protocol: 'file:', hostname: '', pathname: S, search: '', hash: '' }, 'utf8'))"
    ),
    "url_with_two_faces": (
        "class U extends URL { toString() { return this.href } get href() { return `file://${process.cwd()}/data/a.txt` }"
        " get pathname() { return S } } console.log(fs.readFileSync(new U('file:///x'), 'utf8'))"
    ),
    "handle_like_object": (
        "let n = 0; const p = new Proxy(new URL('file://' + process.cwd() + '/data/a.txt'), { get: (t, k) => k === 'pathname' && n++ ? S : t[k] });"
        "fs.promises.readFile(p, 'utf8').then(console.log, () => {})"
    ),
    "options_of_a_class": (
        "class O { get encoding() { throw Error(fs.readFileSync(S, 'utf8')) } } console.log(fs.readFileSync('data/a.txt', new O()))"
    ),
    "callback_within_a_call": (
        "fs.cpSync('data', 'out/d', { recursive: true, filter: () => console.log(fs.readFileSync(S, 'utf8')) })"
    ),
    "class_of_the_worker": (
        "const W = require('worker_threads').Worker; for (const C of [Object.getPrototypeOf(W), W.prototype.constructor])"
        " try { new C(`console.log(require('fs').readFileSync('${S}', 'utf8'))`, { eval: true, execArgv: [], env: {} }).on('error', () => {}) } catch {}"
    ),
    "existence": (
        "console.log(fs.existsSync(S) || fs.statSync(S, { throwIfNoEntry: false }) || fs.lstatSync(S, { throwIfNoEntry: false }) ? 'loaded' : '')"
    ),
    "where_links_lead": "console.log(fs.realpathSync.native(S))",
    "environment_file": "process.loadEnvFile(S.replace('secret.txt', 'env')); console.log(process.env.GOT)",
    "replaced_process": "process.execve('/bin/cat', ['echo', S], {})",
    "node_before_its_guard": (
        "fs.writeFileSync('out/e.cjs', `console.log(require('fs').readFileSync('${S}', 'utf8'))`); const e = process.env;"
        "for (const [a, o] of [[[], `--require ./out/e.cjs ${e.NODE_OPTIONS}`], [['--loader', './out/e.cjs'], e.NODE_OPTIONS],"
        " [['--snapshot-blob', 'x', 'y'], e.NODE_OPTIONS]]) try { console.log(String(c.execFileSync(process.execPath,"
        " [...a, '-e', '1'], { env: { ...e, NODE_OPTIONS: o } }))) } catch {}"
    ),
    "node_with_two_faced_environment": (
        "let n = 0; const env = { ...process.env, get NODE_OPTIONS() { return n++ ? '' : process.env.NODE_OPTIONS } };"
        "console.log(String(c.execFileSync(process.execPath, ['-e', `console.log(require('fs').readFileSync('${S}', 'utf8'))`], { env })))"
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
    "directory_beside_a_grant": "fs.mkdtempSync(S + '.')",
    "read_with_a_flag": "fs.readFileSync(S, { flag: 'w+' })",
    "copy_of_a_directory": "fs.cpSync('data', require('path').dirname(S) + '/d', { recursive: true })",
    "removal_of_a_directory": "fs.rmSync(require('path').dirname(S), { recursive: true })",
    "promise": "fs.promises.writeFile(S, 'x')",
    "report": "process.report.writeReport(S + '.r')",
    "report_directory": "process.report.directory = require('path').dirname(S)",
    "heap": "require('v8').writeHeapSnapshot(S + '.h')",
    "link_followed_by_chmod": "fs.chmodSync('data/outwards', 0)",
    "link_with_a_slash": "fs.rmSync('data/folder/', { recursive: true })",
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
    "datagram_to_a_text_port": "require('dgram').createSocket('udp4').send('x', `${PORT}`, '127.0.0.1')",
    "datagram_by_its_own_lookup": (
        "require('dgram').createSocket({ type: 'udp4', lookup: (h, o, cb) => cb(null, '127.0.0.1', 4) }).send('x', PORT, 'localhost')"
    ),
    "name_server": "new (require('dns').Resolver)().setServers([`127.0.0.1:${PORT}`])",
    "reverse_lookup": "require('dns').reverse('1.2.3.4', () => {})",
    "abstract_socket": "net.createServer().listen('\\0agentbox-test', () => console.log('LISTENS'))",
    "bound_datagrams": "require('dgram').createSocket('udp4').bind(0x3039, () => console.log('LISTENS'))",
    "server": "net.createServer().listen(0, '0.0.0.0', () => console.log('LISTENS'))",
}


@pytest.mark.parametrize("trick", READS)
def test_blocks_reading_by(host: Host, node: str, trick: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    for name, text in (("m.mjs", f"export default '{SECRET}'"), ("j.json", f'"{SECRET}"'), ("env", f"GOT={SECRET}\n")):
        (host.base / "outside" / name).write_text(text)
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
    secret = host.base / "outside" / "secret.txt"
    (host.project / "data" / "outwards").symlink_to(secret)
    (host.project / "data" / "folder").symlink_to(secret.parent)
    with unchanged(secret):
        done = host.run(POLICY, [node, "-e", BEFORE.format(secret=str(secret)) + CHANGES[trick]])
    assert "agentbox: policy denies" in done.stderr
    assert done.of("deny", "write")


@pytest.mark.parametrize("trick", SENDS)
def test_blocks_sending_by(host: Host, node: str, trick: str) -> None:
    with unheard() as port:
        done = host.run(POLICY, [node, "-e", BEFORE.format(secret="") + f"const PORT = {port};\n" + SENDS[trick]])
    assert "LISTENS" not in done.stdout
    assert done.of("deny", "net"), done.stderr


def test_changes_of_mode_through_a_file_that_was_opened_for_reading_are_blocked(host: Host, node: str) -> None:
    file = host.project / "data" / "a.txt"
    before = file.stat().st_mode
    code = (
        "try { fs.fchmodSync(fs.openSync('data/a.txt'), 0o777) } catch (e) { console.log(e.name) }"
        "fs.promises.open('data/a.txt').then((h) => h.chmod(0o777).catch((e) => console.log(e.name)).then(() => h.close()))"
    )
    done = host.run(POLICY, [node, "-e", BEFORE.format(secret="") + code])
    assert done.stdout.split() == ["AgentboxPolicyError"] * 2, done.stderr
    assert file.stat().st_mode == before


def test_denials_within_a_tree_hold_for_calls_on_all_of_it(host: Host, node: str) -> None:
    (host.project / "data" / "key").write_text(SECRET)
    code = (
        "for (const f of [() => fs.cpSync('data', 'out/d', { recursive: true }), () => fs.rmSync('data', { recursive: true }),"
        " () => fs.renameSync('data', 'out/e')]) try { f(); console.log('loaded') } catch (e) { console.log(e.name) }"
        "fs.promises.cp('data', 'out/f', { recursive: true }).catch((e) => console.log(e.name))"
    )
    policy = "write: ./data\nwrite: ./out\ndeny: read ./data/key\n"
    done = host.run(policy, [node, "-e", BEFORE.format(secret="") + code])
    # To the last, which looks before it copies, what may not be read is not there.
    assert done.stdout.split() == ["AgentboxPolicyError"] * 3 + ["Error"], done.stderr
    assert (host.project / "data" / "key").read_text() == SECRET
    assert not [path for path in (host.project / "out").rglob("*") if path.is_file() and path.read_text() == SECRET]
