# SPDX-License-Identifier: MIT
"""A Node that waited in its box does what `node main.js` in a new box does: each program runs both ways."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.integration.pool.case import Case
from tests.integration.pool.conftest import Run, runner_of
from tests.integration.pool.node_programs import ENDINGS, MODULES, STREAMS, WORK
from tests.running_server import RunningServer

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")

SAME = ("stdout", "stderr", "stdout_base64", "stderr_base64", "exit_code", "signal", "outcome", "oom_killed", "files")
CASES = {**ENDINGS, **STREAMS, **MODULES, **WORK}
# The outermost frame is Node's own, and the one thing of an error that tells: see docs/guide/warm-pool.md.
_OUTERMOST = re.compile(
    r"^ *(at|\d+:) (process\.|)(processTicksAndRejections |)"
    r"\(?node:internal/(process/task_queues|main/run_main_module):\d+:\d+\)?",
    re.MULTILINE,
)
_PID = re.compile(r"^(\(node:)\d+", re.MULTILINE)
_WARM_SECONDS = 60.0


@pytest.fixture(scope="module")
def warm_node(warm_server: RunningServer) -> Iterator[Run]:
    with warm_server.client() as client:
        yield runner_of(warm_server, client)


def until_warm(run: Run, code: str, **more: Any) -> dict[str, Any]:
    """The answer of the first run that a warm Node took. Raises AssertionError when none does for a minute."""
    deadline = time.monotonic() + _WARM_SECONDS
    while True:
        answer = run(code, language="javascript", **more)
        if answer["timings"]["start"] == "warm":
            return answer
        assert time.monotonic() < deadline, "no run was warm for a minute"


def _shown(answer: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: answer[key] for key in SAME}
    for stream in ("stdout", "stderr"):
        text = _OUTERMOST.sub("", found[stream])
        found[stream] = [line for line in _PID.sub(r"\1", text).split("\n") if line]
    return found


@pytest.mark.parametrize("name", CASES)
def test_program_cannot_tell_from_its_run(name: str, warm_node: Run, cold: Run) -> None:
    case: Case = CASES[name]
    expected = cold(case.code, language="javascript", **case.more)
    assert expected["timings"]["start"] == "cold"
    assert _shown(until_warm(warm_node, case.code, **case.more)) == _shown(expected)


def test_runs_of_two_keys_find_nothing_of_each_other(warm_node: Run) -> None:
    leave = """
const fs = require('fs')
fs.writeFileSync('/tmp/left', 'x'); fs.writeFileSync('/dev/shm/left', 'x'); fs.writeFileSync('left', 'x')
globalThis.left = 1; process.env.LEFT = '1'; Array.prototype.left = 1
require('child_process').spawn('sleep', ['60'], { detached: true, stdio: 'ignore' }).unref()
"""
    find = """
const fs = require('fs')
console.log(['/tmp', '/dev/shm', '.'].map((d) => fs.readdirSync(d).join()), globalThis.left, process.env.LEFT, [].left)
console.log(fs.readdirSync('/proc').filter((n) => /^[0-9]+$/.test(n) && Number(n) !== process.pid).join())
"""
    until_warm(warm_node, leave)
    found = until_warm(warm_node, find)
    assert found["stdout"] == "[ '', '', 'main.js' ] undefined undefined undefined\n1\n"


def test_no_two_runs_draw_the_same_random_numbers(warm_node: Run) -> None:
    code = "console.log(Math.random(), require('crypto').randomUUID())"
    drawn = [number for _ in range(3) for number in until_warm(warm_node, code)["stdout"].split()]
    assert len(set(drawn)) == 6


@pytest.mark.parametrize(
    "more",
    [
        {"limits": {"memory_mb": 512}},
        {"limits": {"disk_mb": 64}},
        {"limits": {"pids": 300}},
        {"env": {"NODE_OPTIONS": "--no-warnings"}},
        {"env": {"TZ": "Asia/Tokyo"}},
        {"env": {"LANG": "de_DE.UTF-8"}},
        {"env": {"FORCE_COLOR": "1"}},
    ],
    ids=lambda more: "-".join(next(iter(more.values()))),
)
def test_run_that_needs_another_start_is_started_anew(more: dict[str, Any], warm_node: Run, cold: Run) -> None:
    code = """
console.log(new Date(0).getHours(), process.env, process.execArgv, { a: 1 })
console.log(require('v8').getHeapStatistics().heap_size_limit >> 20, require('fs').statfsSync('/work').blocks)
console.log(require('fs').readFileSync('/proc/self/limits', 'utf8').match(/Max processes.*/)[0])
"""
    found = warm_node(code, language="javascript", **more)
    assert found["timings"]["start"] == "made"
    assert _shown(found) == _shown(cold(code, language="javascript", **more))


def test_fewer_processes_are_held_though_node_waited_with_more(warm_node: Run) -> None:
    code = """
const { spawn } = require('child_process')
const children = Array.from({ length: 60 }, () => spawn('sleep', ['5'], { stdio: 'ignore' }))
let failed = 0
for (const child of children) child.on('error', () => failed++)
setTimeout(() => { console.log(failed > 10); process.exit(0) }, 300)
"""
    assert until_warm(warm_node, code, limits={"pids": 40})["stdout"] == "true\n"


def test_end_is_believed_once_and_from_the_run_alone(warm_node: Run) -> None:
    forged = """
const fs = require('fs')
const head = Buffer.alloc(40); head.write('x'); head.writeInt32LE(7, 8)
fs.writeSync(4, head)
setTimeout(() => console.log('never'), 5000)
"""
    assert until_warm(warm_node, forged)["exit_code"] == 7
    assert until_warm(warm_node, "process.exit(3)")["exit_code"] == 3


def test_descriptor_that_took_the_place_of_ours_is_not_written_to(warm_node: Run) -> None:
    code = """
const fs = require('fs')
fs.closeSync(4)
console.log(fs.openSync("third", "w"), fs.openSync("took", "w"))
"""
    found = until_warm(warm_node, code, return_files=["took"])
    assert (found["stdout"], found["exit_code"]) == ("3 4\n", 0)
    assert found["files"] == {"took": {"base64": "", "bytes": 0}}


def test_native_module_may_have_the_last_word(warm_node: Run) -> None:
    code = "require.cache['/work/x.node'] = module; process.on('exit', () => {}); process.exit(5)"
    assert until_warm(warm_node, code)["exit_code"] == 5
