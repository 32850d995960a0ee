# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Rules that count, as Node's guard keeps them: the host counts, for all processes and threads of a run."""

from __future__ import annotations

import pytest

from tests.integration.guest.guarded import Host

CAPPED = "read: ./data\nwrite: ./out max=1000\nwrite: ./free\n"
BEFORE = "const fs = require('fs'); const B = Buffer.alloc(700, 'x'), T = 'y'.repeat(1500), cb = (e) => { if (e) throw e };\n"

# Each would make what lies in ./out larger than 1,000 bytes.
TOO_MUCH = {
    "writeFileSync": "fs.writeFileSync('out/a', T)",
    "second_file": "fs.writeFileSync('out/a', B); fs.writeFileSync('out/b', B)",
    "appendFileSync": "for (let i = 0; i < 5; i++) fs.appendFileSync('out/a', 'z'.repeat(300))",
    "writeSync": "const f = fs.openSync('out/a', 'w'); for (let i = 0; i < 5; i++) fs.writeSync(f, 'z'.repeat(300))",
    "writeSync_at_a_place": "fs.writeSync(fs.openSync('out/a', 'w'), 'z', 5000)",
    "writeSync_with_options": "const f = fs.openSync('out/a', 'w'); fs.writeSync(f, B, 0, 700, null); fs.writeSync(f, B, { offset: 0, length: 700 })",
    "writevSync": "fs.writevSync(fs.openSync('out/a', 'w'), [B, B])",
    "ftruncateSync": "fs.ftruncateSync(fs.openSync('out/a', 'w'), 5000)",
    "truncateSync": "fs.writeFileSync('out/a', ''); fs.truncateSync('out/a', 5000)",
    "writes_at_once": "const f = fs.openSync('out/a', 'w'); for (let i = 0; i < 4; i++) fs.write(f, B, cb)",
    "writeFile": "fs.writeFile('out/a', T, cb)",
    "appendFile": "fs.appendFile('out/a', T, { mode: 0o600 }, cb)",
    "promise": "fs.promises.writeFile('out/a', T)",
    "promise_of_parts": "fs.promises.writeFile('out/a', (async function* () { for (let i = 0; i < 9; i++) yield B })())",
    "promise_that_appends": "fs.promises.appendFile('out/a', T)",
    "promises_at_once": "Promise.all([1, 2, 3].map((i) => fs.promises.writeFile(`out/${i}`, B)))",
    "handle": "fs.promises.open('out/a', 'w').then(async (h) => { for (let i = 0; i < 5; i++) await h.write(B) })",
    "handle_at_once": "fs.promises.open('out/a', 'w').then((h) => Promise.all([h.writeFile(B), h.writeFile(B)]))",
    "handle_truncate": "fs.promises.open('out/a', 'w').then((h) => h.truncate(4000))",
    "stream": "const s = fs.createWriteStream('out/a'); for (let i = 0; i < 9; i++) s.write(B); s.end()",
    "stream_of_a_handle": "fs.promises.open('out/a', 'w').then((h) => { const s = h.createWriteStream(); for (let i = 0; i < 9; i++) s.write(B); s.end() })",
    "stream_that_appends": "fs.writeFileSync('out/a', 'x'); const s = fs.createWriteStream('out/a', { flags: 'a' }); for (let i = 0; i < 9; i++) s.write(B); s.end()",
    "copyFileSync": "fs.copyFileSync('data/big', 'out/b')",
    "cpSync": "fs.cpSync('data', 'out', { recursive: true })",
    "cp": "fs.promises.cp('data', 'out', { recursive: true })",
    "rename": "fs.writeFileSync('free/x', T); fs.renameSync('free/x', 'out/x')",
    "link": "fs.writeFileSync('free/x', T); fs.linkSync('free/x', 'out/x')",
    "thread": "fs.writeFileSync('out/a', B); new (require('worker_threads').Worker)(`require('fs').writeFileSync('out/b', 'z'.repeat(700))`, { eval: true }).on('error', cb)",
}


@pytest.mark.parametrize("way", TOO_MUCH)
def test_cap_holds_for(host: Host, node: str, way: str) -> None:
    (host.project / "free").mkdir()
    (host.project / "data" / "big").write_text("b" * 3000)
    done = host.run(CAPPED, [node, "-e", BEFORE + TOO_MUCH[way]])
    assert "agentbox: policy denies write" in done.stderr
    assert sum(path.stat().st_size for path in (host.project / "out").iterdir()) <= 1000


def test_what_fits_below_a_cap_is_written_and_what_is_removed_gives_its_bytes_back(host: Host, node: str) -> None:
    code = (
        "for (let i = 0; i < 5; i++) { fs.writeFileSync('out/a', B); fs.rmSync('out/a') }"
        "fs.writeFileSync('out/a', B); fs.writeFileSync('out/a', B);"
        "fs.promises.writeFile('out/b', 'x'.repeat(200)).then(() => fs.appendFile('out/b', 'y'.repeat(50), cb))"
    )
    done = host.run(CAPPED, [node, "-e", BEFORE + code])
    assert done.exit_code == 0, done.stderr
    assert {path.name: path.stat().st_size for path in (host.project / "out").iterdir()} == {"a": 700, "b": 250}


def test_cap_holds_for_processes_together(host: Host, node: str) -> None:
    child = "require('fs').writeFileSync('out/b', 'z'.repeat(700))"
    code = f"fs.writeFileSync('out/a', B); require('child_process').execFileSync(process.execPath, ['-e', {child!r}])"
    done = host.run(CAPPED + f"exec: {node}\n", [node, "-e", BEFORE + code])
    assert "agentbox: policy denies write" in done.stderr
    assert (host.project / "out" / "a").stat().st_size == 700
    assert not (host.project / "out" / "b").stat().st_size


READS = {
    "again": "fs.readFileSync('data/a.txt', 'utf8')",
    "promise": "await fs.promises.readFile('data/a.txt', 'utf8')",
    "stream": "await new Promise((ok, no) => fs.createReadStream('data/a.txt').on('data', ok).on('error', no))",
    "changing": "fs.openSync('data/a.txt', 'r+')",
    "copy": "fs.copyFileSync('data/a.txt', 'out/c')",
    "module": "await import(`${process.cwd()}/data/a.txt`)",
    "thread": "await new Promise((ok, no) => new (require('worker_threads').Worker)(`require('fs').readFileSync('data/a.txt')`, { eval: true }).on('exit', ok).on('error', no))",
    "process": "require('child_process').execFileSync(process.execPath, ['-e', `require('fs').readFileSync('data/a.txt')`])",
}


@pytest.mark.parametrize("way", READS)
def test_file_is_read_once_also_by(host: Host, node: str, way: str) -> None:
    (host.project / "data" / "other").write_text("other")
    code = (
        "(async () => { console.log(fs.readFileSync('data/a.txt', 'utf8'), fs.readFileSync('data/other', 'utf8'));"
        f"try {{ {READS[way]}; console.log('again') }} catch (e) {{ console.log(e.message.match(/policy denies \\w+/)[0]) }} }})()"
    )
    policy = f"read-once: ./data\nwrite: ./data\nwrite: ./out\nexec: {node}\n"
    done = host.run(policy, [node, "-e", "const fs = require('fs');" + code])
    assert done.stdout.splitlines() == ["hello other", "policy denies read"], done.stderr


def test_observed_denials_of_the_host_are_told_and_do_not_end_anything(host: Host, node: str) -> None:
    done = host.run(CAPPED, [node, "-e", BEFORE + "fs.writeFileSync('out/a', T)"], enforce=False)
    assert f"agentbox[observe]: would deny write {host.project}/out/a" in done.stderr
    assert (host.project / "out" / "a").stat().st_size == 1500
