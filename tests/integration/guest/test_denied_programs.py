# SPDX-License-Identifier: MIT
"""A denied program is told alike by Python and Node: its words, the file that would run, and whether it was refused."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from typing import Any

import pytest

from tests.integration.guest.guarded import Host

POLICY = "read: ./data\nwrite: ./out\nexec: echo\n"
FILE = """import subprocess, sys, json
try: subprocess.run(json.loads(sys.argv[1]), env=dict(PATH='/usr/bin:/bin'))
except PermissionError as error: print(error)
"""
NODE = """const [file, ...rest] = JSON.parse(process.argv[1]);
try { require('child_process').execFileSync(file, rest, { env: { PATH: '/usr/bin:/bin' } }) }
catch (error) { console.log(error.message) }
"""


def denials(host: Host, start: list[str], argv: list[str], **options: Any) -> tuple[str, list[dict[str, Any]]]:
    done = host.run(POLICY, [*start, json.dumps(argv)], **options)
    return done.stdout, done.of("deny", "exec")


@pytest.mark.parametrize("argv", [["cat", "secret.txt"], ["/bin/sh", "-c", "echo x"], ["ls", "é", "x" * 2000]])
def test_both_languages_tell_the_same_of_a_denied_program(host: Host, node: str, argv: list[str]) -> None:
    python = denials(host, [sys.executable, "-c", FILE], argv)
    assert python == denials(host, [node, "-e", NODE], argv)
    [denied] = python[1]
    assert denied["program"] == os.path.realpath(shutil.which(argv[0], path="/usr/bin:/bin") or "")
    assert denied["argv"] == [word[:1000] for word in argv]
    assert denied["enforced"] is True


def test_both_languages_tell_the_same_of_a_program_whose_name_is_no_text(host: Host, node: str) -> None:
    program = host.project / os.fsdecode(b"pro\xffgram")
    program.write_text("#!/bin/sh\necho gained\n")
    program.chmod(0o755)
    code = (
        "import subprocess, os\n"
        "try: subprocess.run([b'./pro\\xffgram'])\n"
        "except PermissionError as error: print('refused')\n"
    )
    (host.project / "link").symlink_to(program)
    script = "try { require('child_process').execFileSync('./link') } catch (error) { console.log('refused') }"
    for start in ([sys.executable, "-c", code], [node, "-e", script]):
        done = host.run(POLICY, start)
        assert done.stdout == "refused\n", done.stderr
        [denied] = done.of("deny", "exec")
        assert base64.b64decode(denied["program"]["b64"]) == os.fsencode(program)


def test_an_interpreter_that_would_start_without_its_guard_is_told_with_its_file(host: Host, node: str) -> None:
    system = os.path.realpath(sys.executable)
    policy = f"{POLICY}exec: {system}\n"
    code = f"import subprocess\ntry: subprocess.run([{system!r}, '-I', '-c', '0'])\nexcept PermissionError: print('no')"
    script = (
        f"try {{ require('child_process').execFileSync({system!r}, ['-I', '-c', '0']) }} catch {{ console.log('no') }}"
    )
    for start in ([sys.executable, "-c", code], [node, "-e", script]):
        done = host.run(policy, start)
        assert done.stdout == "no\n", done.stderr
        [denied] = done.of("deny", "exec")
        assert (denied["argv"], denied["program"]) == ([system, "-I", "-c", "0"], system)
