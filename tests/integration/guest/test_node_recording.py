# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""What a Node program notices of being recorded for a replay, and what its host hears."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentbox.trace import frames
from tests.integration.guest.guarded import Host, Outcome
from tests.nodes import nodes

POLICY = "read: ./data\nwrite: ./out\nexec: echo, sh\n"
NODE_DIRECTORY = Path(__file__).parents[3] / "src" / "agentbox" / "guest" / "node"


def recorded(host: Host, code: str, *, policy: str = POLICY, **variables: str) -> Outcome:
    """Run a program as the command of a run that is recorded for a replay."""
    found = nodes()
    if not found:
        pytest.skip("needs node")
    seed = {"AGENTBOX_SEED": "5e" * 32}
    return host.run(policy, [found[0], "-e", code], wall="jail", variables={**seed, **variables})


def calls(done: Outcome) -> list[Any]:
    """What was told of clocks, frame by frame."""
    return [args["calls"] for args in done.of("observe", "clock.values")]


def test_calls_of_clocks_are_told_together_and_before_what_comes_next(host: Host) -> None:
    done = recorded(
        host,
        "const a = Date.now(), b = performance.now(); require('fs').writeFileSync('out/x', '');"
        "const c = process.hrtime.bigint(); console.log(JSON.stringify([a, b, String(c)]))",
    )
    a, b, c = json.loads(done.stdout)
    ops = [(one.op, one.lane) for one in done.records]
    assert ops == [("clock.values", "main"), ("fs.open_write", "main"), ("clock.values", "main")]
    assert calls(done) == [[["Date.now", a], ["performance.now", b]], [["process.hrtime", c]]]


def test_a_loop_that_waits_for_the_clock_is_told_in_few_words(host: Host) -> None:
    done = recorded(host, "const a = Date.now(); let n = 1; while (Date.now() < a + 20) n++; console.log(n + 1)")
    told = [one for batch in calls(done) for one in batch]
    assert len(told) < 60
    assert sum(1 + (one[2][0][0] if len(one) > 2 else 0) for one in told) == int(done.stdout)


def test_what_is_called_while_the_process_ends_is_told_too(host: Host) -> None:
    done = recorded(host, "process.on('exit', () => { Date.now(); performance.now() }); Date.now(); process.exit(0)")
    assert [one[0] for batch in calls(done) for one in batch] == ["Date.now", "Date.now", "performance.now"]


def test_runs_of_one_seed_draw_the_same_and_other_lanes_draw_others(host: Host) -> None:
    code = (
        "const c = require('crypto'); const draw = () => [c.randomUUID(), Math.random(), c.randomBytes(300).toString('hex'), c.randomInt(1e9)];"
        "console.log(JSON.stringify(draw())); const { Worker } = require('worker_threads');"
        "new Worker(`const c = require('crypto'); console.log(JSON.stringify([c.randomUUID(), Math.random()]))`, { eval: true })"
    )
    first, again, other = (recorded(host, code, **more).stdout for more in ({}, {}, {"AGENTBOX_SEED": "6f" * 32}))
    assert first == again != other
    mine, workers = (json.loads(line) for line in first.splitlines())
    assert mine[0] != workers[0]
    assert mine[1] != workers[1]


def test_only_the_command_itself_has_the_seed(host: Host) -> None:
    code = (
        "console.log(Object.keys(process.env).filter((name) => /SEED|CLOCKS/.test(name)));"
        "console.log(String(require('child_process').execSync('echo $AGENTBOX_SEED')).trim());"
        "new (require('worker_threads').Worker)(`console.log(require('worker_threads').getEnvironmentData('agentbox.thread'))`, { eval: true })"
    )
    assert recorded(host, code).stdout.split() == ["[]", "undefined"]


def test_threads_are_named_by_who_started_them_and_as_which(host: Host) -> None:
    inner = "require('fs').readFileSync('data/a.txt')"
    code = (
        "const start = (code, then) => new (require('worker_threads').Worker)(code, { eval: true }).on('exit', then);"
        f"start(`{inner}; new (require('worker_threads').Worker)(\"{inner}\", {{ eval: true }})`, () => start(`{inner}`, () => {{}}))"
    )
    done = recorded(host, code)
    assert [one.lane for one in done.records if one.op == "fs.open_read"] == ["main.0", "main.0.0", "main.1"]


def test_clocks_may_stay_the_real_ones(host: Host) -> None:
    done = recorded(host, "Date.now(); console.log(agentbox.now() > 0)", AGENTBOX_CLOCKS="live")
    assert done.stdout == "true\n"
    assert calls(done) == []


def test_a_large_file_is_hashed_too(host: Host) -> None:
    (host.project / "data" / "large").write_bytes(b"x" * 3_000_000)
    done = recorded(host, "require('fs').readFileSync('data/large'); require('fs').readFileSync('data/large')")
    first, second = done.of("observe", "fs.open_read")
    assert first == second
    assert len(first["sha256"]) == 64


def test_the_order_of_ends_is_told_where_there_is_more_than_one(host: Host) -> None:
    one = recorded(
        host,
        "const fs = require('fs/promises'); (async () => { for (let i = 0; i < 5; i++) await fs.readFile('data/a.txt') })()",
    )
    assert calls(one) == []
    several = recorded(host, "setTimeout(() => {}, 30); setTimeout(() => {}, 1); setImmediate(() => {})")
    turns = [call for batch in calls(several) for call in batch]
    assert sorted(turns) in ([["async.turn", 2], ["async.turn", 3]],)


def test_what_ended_alone_is_delivered_though_the_next_turn_is_of_what_it_begins() -> None:
    if not (found := nodes()):
        pytest.skip("needs node")
    code = (
        f"const {{ Turns }} = require({json.dumps(str(NODE_DIRECTORY / 'turns.cjs'))});"
        "const order = [2, 3], tape = { replay: true, peek: () => order.length ? ['async.turn', order[0]] : undefined, call: () => order.shift() };"
        "const turns = new Turns(tape), said = [], begin = (name, next = []) => { const n = turns.begin(); return () => turns.end(n, () => { said.push(name); next.forEach((go) => go()) }) };"
        "const one = begin('one', [() => { const a = begin('three'), b = begin('four'); a(); b(); }]), two = begin('two'); two(); one();"
        "let looks = 0; const wait = () => { if (looks++ < 20) setImmediate(wait); else { console.log(said.join()); process.exit() } }; wait()"
    )
    done = subprocess.run([found[0], "-e", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["two,one,three,four"]


def test_types_and_names_look_as_before(host: Host) -> None:
    code = (
        "class Day extends Date { get twice() { return 2 * this } }"
        "console.log(new Date() instanceof Date, new Day(5).twice, Date.name, Date.length, new Date().constructor === Date, typeof Date(),"
        " Object.prototype.toString.call(new Date()), structuredClone(new Date(5)).getTime(), Date.UTC(1970, 0, 1), require('util').types.isDate(new Date()),"
        " setTimeout.name, require('crypto').randomBytes.length, Math.random.name, performance.now.name, process.hrtime.length)"
    )
    words = recorded(host, code).stdout.split()
    assert words == [
        "true",
        "10",
        "Date",
        "7",
        "true",
        "string",
        "[object",
        "Date]",
        "5",
        "0",
        "true",
        "setTimeout",
        "2",
        "random",
        "now",
        "1",
    ]


def test_functions_for_agents_are_there_in_a_run_only(host: Host) -> None:
    code = "console.log(typeof agentbox)"
    assert recorded(host, code).stdout == "object\n"
    outside = subprocess.run([nodes()[0], "-e", code], capture_output=True, text=True, check=True)
    assert outside.stdout == "undefined\n"


class WithoutCheckpoint(Host):
    """A host that cannot take the checkpoint of its run."""

    def answer(self, request: frames.Request) -> bytes:
        body = json.dumps({"id": request.id, "ok": False, "checkpoint": True, "error": "checkpoint failed: no room"})
        return len(body).to_bytes(4, "little") + body.encode()


@pytest.mark.parametrize(
    "change",
    [
        "require('fs').writeFileSync('out/x', '')",
        "await require('fs/promises').mkdir('out/x')",
        "require('child_process').execSync('echo')",
        "agentbox.writeText('out/x', '')",
        "agentbox.run(['echo'])",
    ],
)
def test_nothing_is_changed_without_a_checkpoint(host: Host, change: str) -> None:
    strict = WithoutCheckpoint(host.base, host.project, host.guards)
    done = recorded(
        strict, f"(async () => {{ {change} }})().catch((e) => console.log(e.name, e.message.replace('agentbox: ', '')))"
    )
    assert done.stdout == "CheckpointError checkpoint failed: no room\n", done
    assert list((host.project / "out").iterdir()) == []


def test_secrets_are_hidden_as_python_hides_them() -> None:
    urls = [
        "http://user:word@host/a?b=c",
        "https://host:8/a?token=1&b=2&API_KEY=3#access_token=4&x",
        "http://@host/",
        "file:///etc/passwd",
        "nonsense?key=1",
        "http://a/b@c?d@e",
    ]
    headers = {
        "Authorization": "a",
        "X-Api-Key": "b",
        "Accept": "c",
        "Cookie": "d",
        "X-Signature-2": "e",
        "Monkey": "f",
    }
    script = (
        f"const r = require({str(NODE_DIRECTORY / 'redaction.cjs')!r});"
        f"console.log(JSON.stringify([{json.dumps(urls)}.map(r.redactedUrl), r.redactedHeaders({json.dumps(headers)})]))"
    )
    done = subprocess.run([nodes()[0], "-e", script], capture_output=True, text=True, check=True)
    from agentbox.client import redaction

    assert json.loads(done.stdout) == [[redaction.url(url) for url in urls], redaction.headers(headers)]


@pytest.mark.parametrize(
    ("ended", "calls", "told"),
    [
        ("t.end(t.begin(), () => {})", [["async.turn", 1]], [0]),
        ("t.end(t.begin(), () => {})", [["async.turn", 1], ["Date.now", 1]], [1]),
        ("t.begin()", [["async.turn", 1]], [1]),
        ("t.end(t.begin(), () => {})", [["async.turn", 2]], [1]),
        ("", [["async.turn", 1]], []),
    ],
    ids=["turn of what is over", "a clock after it", "turn of what goes on", "turn of what was not begun", "no turns"],
)
def test_a_turn_of_what_ended_alone_is_passed_at_the_end_of_a_replay(
    ended: str, calls: list[list[Any]], told: list[int]
) -> None:
    """`told` is how many calls are said to be unused, where the host was asked for any."""
    found = nodes()
    if not found:
        pytest.skip("needs node")
    code = (
        f"const {{ Tape }} = require({json.dumps(str(NODE_DIRECTORY / 'tape.cjs'))}); let left = {json.dumps(calls)};"
        "const told = [], channel = { own: 'main', ask(kind, op) {"
        "  if (op === 'clock.next') { const calls = left; left = []; told.push(0); return { ok: true, result: { calls } }; }"
        "  told[0] = this.at('main').unused; return { ok: true }; } };"
        f"const tape = new Tape(channel, true), t = tape.turns; {ended}; tape.end(); console.log(JSON.stringify(told.slice(0, 1)))"
    )
    done = subprocess.run([found[0], "-e", code], capture_output=True, text=True, check=False)
    assert (done.stderr, json.loads(done.stdout)) == ("", told)
