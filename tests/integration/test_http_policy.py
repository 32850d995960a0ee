# SPDX-License-Identifier: MIT
"""A policy in /v1/run, and the operator's above it: what the program can do then, and what it cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.commands import agentbox, assert_is_told_what_to_do
from tests.running_server import RunningServer
from tests.standing import Standing

CEILING = """\
read: .
write: ./out
exec: ls
env: LANG, COLOUR
deny: env PRIVATE
deny: read ./secrets
limits: timeout_seconds=20, memory_mb=256, pids=64
"""

# Prints what each attempt gained; a program that starts prints its own words.
STARTS = """
import ctypes, os, subprocess, sys
def start(*argv, **more):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, **more)
    except OSError as error:
        print("refused", error.errno)
    else:
        print("ended", done.returncode, done.stdout.strip())
"""

LOOKS = """
import os
def look(path, mode="r"):
    try:
        with open(path, mode) as file:
            print(path, file.read() if mode == "r" else file.write("x"))
    except OSError as error:
        print(path, type(error).__name__, error.errno)
"""


@pytest.fixture
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def ceiling(start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    """A server whose operator narrows every run."""
    path = tmp_path_factory.mktemp("ceiling") / "ceiling.policy"
    path.write_text(CEILING, encoding="utf-8")
    return start_server(AGENTBOX_POLICY_CEILING=str(path))


def run(client: httpx.Client, code: str, policy: str | None = None, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": code, "policy": policy, **fields})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def refused(client: httpx.Client, policy: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/run", json={"code": "print('ran')", "policy": policy, **fields})
    assert answer.status_code == 400, answer.text
    body: dict[str, Any] = answer.json()
    assert "result" not in body
    return body


def test_a_fault_in_the_text_is_named_with_line_column_and_a_caret(client: httpx.Client) -> None:
    body = refused(client, "read: .\n\n  wrte: ./x\n")
    assert body["code"] == "policy_syntax"
    fault = body["policy"]
    assert (fault["line"], fault["column"], fault["problem"]) == (3, 3, "unknown_key")
    assert fault["source"] == "  wrte: ./x"
    assert fault["caret"] == "  ^"
    assert "did you mean `write:`" in body["hint"]


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        ("net: example.com", "permits no network"),
        ("write: /tmp/out max=1MB", "below /work"),
        ("deny: read /proc", "cannot start"),
        ("deny: write /", "cannot start"),
        ("deny: read /usr/**/secret", "below /work"),
        ("include: /etc/agentbox/base.policy", "included"),
    ],
)
def test_a_rule_that_no_layer_holds_is_refused_with_the_reason(client: httpx.Client, policy: str, word: str) -> None:
    body = refused(client, policy)
    assert word in body["detail"] + body["hint"]


def test_a_text_that_is_too_long_is_a_fault_of_the_body(client: httpx.Client) -> None:
    answer = client.post("/v1/run", json={"code": "1", "policy": "#" * 70_000})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "policy"]


def test_the_program_sees_what_a_rule_grants_and_nothing_else_of_its_directory(client: httpx.Client) -> None:
    code = LOOKS + "print(sorted(os.listdir('.')))\nfor path in ('data/in', 'other', 'data/deep/in'): look(path)"
    files = {"data/in": "1", "data/deep/in": "2", "other": "3", "data-secret": "4"}
    body = run(client, code, "read: ./data", files=files)
    lines = body["stdout"].splitlines()
    assert lines == ["['data', 'main.py']", "data/in 1", "other PermissionError 13", "data/deep/in 2"]
    assert (body["enforcement"]["filesystem"], body["enforcement"]["exec"]) == ("kernel", "kernel")


def test_a_policy_without_file_rules_shows_the_program_itself_alone(client: httpx.Client) -> None:
    code = "import os; print(os.listdir('/work')); print(open('main.py').read() != '')"
    assert run(client, code, "limits: pids=32", files={"a": "1"})["stdout"] == "['main.py']\nTrue\n"


def test_without_a_write_rule_the_directory_is_read_only(client: httpx.Client) -> None:
    code = LOOKS + (
        "look('a', 'w'); look('new', 'w'); look('main.py', 'a')\n"
        "for act in (lambda: os.mkdir('d'), lambda: os.remove('a'), lambda: os.rename('a', 'b'),"
        " lambda: os.chmod('a', 0), lambda: os.symlink('a', 'l'), lambda: os.truncate('a', 0)):\n"
        "    try:\n        act(); print('did it')\n    except OSError as error:\n        print(error.errno)\n"
    )
    body = run(client, code, "read: .", files={"a": "1"}, return_files=["**"])
    assert body["stdout"].split() == [
        "a",
        *("PermissionError", "13", "new", "PermissionError", "13", "main.py", "PermissionError", "13"),
        *["13"] * 6,
    ]
    assert set(body["files"]) - {"main.py"} == {"a"}


def test_scratch_directories_stay_writable_under_every_policy(client: httpx.Client) -> None:
    code = "for at in ('/tmp/x', '/dev/shm/x'): print(open(at, 'w').write('123'))"
    assert run(client, code, "read: .")["stdout"] == "3\n3\n"


def test_a_write_rule_makes_its_directory_writable_and_comes_back_with_the_files(client: httpx.Client) -> None:
    code = LOOKS + "look('out/report', 'w'); look('log.txt', 'w'); look('data/in', 'w'); print(open('data/in').read())"
    body = run(
        client, code, "read: ./data\nwrite: ./out, ./log.txt", files={"data/in": "1"}, return_files=["out/*", "*.txt"]
    )
    assert body["stdout"].splitlines() == ["out/report 1", "log.txt 1", "data/in PermissionError 13", "1"]
    assert set(body["files"]) == {"out/report", "log.txt"}


def test_a_read_rule_below_a_write_rule_does_not_narrow_it(client: httpx.Client) -> None:
    code = LOOKS + "look('a/b/c', 'w')"
    assert run(client, code, "write: ./a\nread: ./a/b", files={"a/b/c": ""})["stdout"] == "a/b/c 1\n"


def test_what_was_made_for_a_write_rule_and_not_used_is_not_in_the_snapshot(client: httpx.Client) -> None:
    made = run(client, "open('kept/x', 'w').write('1')", "write: ./kept, ./unused, ./no.txt", snapshot=True)
    code = "import os; print(sorted(os.listdir('.')), os.listdir('kept'))"
    assert run(client, code, snapshot_id=made["snapshot_id"])["stdout"] == "['kept', 'main.py'] ['x']\n"


DENIED = """
import os
def attempt(name, act):
    try:
        print(name, "gained", act())
    except (OSError, ValueError) as error:
        print(name, "refused")
attempt("list", lambda: os.listdir("s"))
attempt("read", lambda: open("s/a").read())
attempt("by another name", lambda: open("/proc/self/cwd/s/a").read())
attempt("through init's root", lambda: open("/proc/1/root/work/s/a").read())
attempt("replace", lambda: os.rename("mine", "s"))
attempt("take away", lambda: os.rename("s", "t"))
attempt("remove", lambda: os.rmdir("s"))
attempt("open up", lambda: os.chmod("s", 0o777))
attempt("link", lambda: os.link("s/a", "x"))
attempt("write", lambda: open("s/b", "w"))
attempt("append to the kept file", lambda: open("kept", "a"))
attempt("replace the kept file", lambda: os.rename("mine2", "kept"))
attempt("unlink the kept file", lambda: os.unlink("kept"))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")
attempt("unmount", lambda: call(libc.umount2(b"/work/s", 2)))
attempt("bind over", lambda: call(libc.mount(b"/tmp", b"/work/s", None, 4096, None)))
attempt("remount", lambda: call(libc.mount(b"none", b"/work/kept", None, 32 | 4096, None)))
attempt("new namespaces", lambda: call(libc.unshare(0x10000000 | 0x20000)))
print(open("kept").read(), open("mine3", "w").write("ok"))
"""


def test_a_denial_wins_and_nothing_that_the_program_does_takes_it_away(client: httpx.Client) -> None:
    policy = "write: .\ndeny: read ./s\ndeny: write ./kept"
    files = {"s/a": "SECRET", "kept": "KEPT", "mine/x": "", "mine2": ""}
    body = run(client, DENIED, policy, files=files, snapshot=True)
    *attempts, last = body["stdout"].splitlines()
    assert len(attempts) == 17
    assert [line for line in attempts if not line.endswith("refused")] == []
    assert last == "KEPT 2"
    after = run(client, "print(open('s/a').read(), open('mine3').read())", snapshot_id=body["snapshot_id"])
    assert after["stdout"] == "SECRET ok\n", "what was hidden is still the caller's"


@pytest.fixture(scope="module", params=["user", "user_with_cgroups"])
def users_server(
    request: pytest.FixtureRequest,
    start_server: Callable[..., RunningServer],
    standings: Callable[[str], Standing],
) -> RunningServer:
    """A server of an ordinary user, whose boxes share that user's id."""
    return start_server(standing=standings(request.param))


def test_an_ordinary_users_server_holds_a_policy_as_well(users_server: RunningServer) -> None:
    files = {"s/a": "SECRET", "kept": "KEPT", "mine/x": "", "mine2": ""}
    with users_server.client() as client:
        body = run(client, DENIED, "write: .\ndeny: read ./s\ndeny: write ./kept", files=files)
        *attempts, last = body["stdout"].splitlines()
        assert [line for line in attempts if not line.endswith("refused")] == []
        assert last == "KEPT 2"
        for attack in EXEC_ATTACKS.values():
            body = run(client, STARTS + attack, "read: .\nexec: ls")
            assert "gained" not in body["stdout"]
            assert body["denials"]
        assert (body["enforcement"]["exec"], body["enforcement"]["filesystem"]) == ("kernel", "kernel")
        assert run(client, STARTS + "start('ls')", "exec: ls")["stdout"] == "ended 0 main.py\n"


def test_a_denial_that_names_a_link_is_for_what_it_points_to(client: httpx.Client) -> None:
    made = run(client, "import os; open('real', 'w').write('SECRET'); os.symlink('real', 'link')", snapshot=True)
    code = LOOKS + "look('link'); look('real')"
    body = run(client, code, "read: .\ndeny: read ./link", snapshot_id=made["snapshot_id"])
    assert "SECRET" not in body["stdout"]
    assert body["stdout"].count("PermissionError") == 2


def test_a_pattern_grants_the_files_that_are_there(client: httpx.Client) -> None:
    files = {"src/a.py": "A", "src/deep/b.py": "B", "src/c.txt": "C", "d.py": "D"}
    code = "import os; print(sorted(os.path.join(at, f)[2:] for at, _, fs in os.walk('.') for f in fs))"
    body = run(client, code, "read: ./src/**/*.py", files=files)
    assert body["stdout"] == "['main.py', 'src/a.py', 'src/deep/b.py']\n"


def test_what_holds_only_for_what_was_there_is_a_warning(client: httpx.Client) -> None:
    body = run(client, "print(1)", "write: .\nprotect: on\ndeny: read ./later")
    assert len(body["warnings"]) == 2
    assert any("`deny: read ./later`" in text for text in body["warnings"])
    assert any("`protect: on`" in text for text in body["warnings"])


def test_a_request_cannot_name_files_of_the_host(client: httpx.Client, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("HOST", encoding="utf-8")
    tmp_path.chmod(0o755)
    policy = f"read: {canary}, /root, /home\nwrite: /var, {tmp_path}\nread: /, /etc/shadow\nexec: {canary}"
    code = LOOKS + (
        f"look({str(canary)!r}); look('/etc/shadow'); look('/usr/x', 'w'); look('/etc/passwd')\n"
        "print(sorted(set(os.listdir('/')) & {'root', 'home', 'var', 'srv'}))"
    )
    body = run(client, code, policy)
    assert "HOST" not in body["stdout"] + body["stderr"]
    assert body["stdout"].splitlines()[1:3] == ["/etc/shadow FileNotFoundError 2", "/usr/x PermissionError 13"]
    assert "agent:x:1000" in body["stdout"]
    assert body["stdout"].splitlines()[-1] == "[]"
    assert any("`read: /root` grants nothing" in text for text in body["warnings"])


GUARD_ONLY = [("read-once: ./key", "reads"), ("write: ./out max=1MB", "bytes"), ("write: ./*.txt", "names")]


@pytest.mark.parametrize(("policy", "word"), GUARD_ONLY)
def test_what_only_a_guard_holds_is_refused_where_the_language_has_none(
    client: httpx.Client, policy: str, word: str
) -> None:
    body = refused(client, policy, language="bash")
    assert word in body["detail"]


@pytest.mark.parametrize(("policy", "word"), GUARD_ONLY)
def test_a_result_says_interpreter_for_what_only_a_guard_holds(client: httpx.Client, policy: str, word: str) -> None:
    body = run(client, "print('ran')", policy, files={"key": "1"})
    assert body["stdout"] == "ran\n", word
    assert body["enforcement"]["filesystem"] == "interpreter"
    assert any(f"`{policy}` is held by the guard" in text for text in body["warnings"])


@pytest.mark.parametrize(("policy", "word"), GUARD_ONLY)
def test_a_ceiling_with_rules_of_the_guard_refuses_languages_without_one(
    start_server: Callable[..., RunningServer], tmp_path: Path, policy: str, word: str
) -> None:
    path = tmp_path / "ceiling.policy"
    path.write_text(f"read: .\n{policy}\n", encoding="utf-8")
    with start_server(AGENTBOX_POLICY_CEILING=str(path)).client() as client:
        assert run(client, "print(open('key').read())", files={"key": "1"})["stdout"] == "1\n"
        answer = client.post("/v1/run", json={"code": "cat key", "language": "bash", "files": {"key": "1"}})
    assert answer.status_code == 400
    assert word in answer.json()["detail"]


def test_a_denial_is_an_error_that_names_what_was_denied(client: httpx.Client) -> None:
    code = "try:\n    open('/etc/passwd')\nexcept PermissionError as error:\n    print(error)"
    body = run(client, code, "read: ./data")
    assert body["stdout"] == "agentbox: policy denies read /etc/passwd\n"
    [denial] = body["denials"]
    assert (denial["layer"], denial["effect"], denial["target"]) == ("interpreter", "read", "/etc/passwd")
    assert denial["rule_missing"] == "read: /etc/passwd"


def test_files_of_the_request_that_no_rule_shows_are_denials(client: httpx.Client) -> None:
    files = {"data/in": "1", "other": "2", "data/key": "3"}
    body = run(client, "print(open('data/in').read())", "read: ./data\ndeny: read ./data/key", files=files)
    assert body["stdout"] == "1\n"
    found = {denial["target"]: denial for denial in body["denials"]}
    assert found.keys() == {"/work/other", "/work/data/key"}
    assert found["/work/other"]["rule_missing"] == "read: /work/other"
    assert found["/work/data/key"]["rule"] == "deny: read ./data/key"


def test_a_pattern_that_may_be_written_holds_for_new_files(client: httpx.Client) -> None:
    code = LOOKS + "look('a.txt', 'w'); look('a.py', 'w'); look('main.py', 'a'); print(open('a.txt').read())"
    body = run(client, code, "write: ./*.txt", return_files=["*"])
    assert body["stdout"].splitlines() == [
        "a.txt 1",
        "a.py PermissionError 13",
        "main.py PermissionError 13",
        "x",
    ]
    assert set(body["files"]) - {"main.py"} == {"a.txt"}


CHILD = """
import subprocess, sys
code = "import sys; print(open(sys.argv[1]).read())"
def child(*words):
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True)
    print(done.stdout.strip() or done.stderr.strip().rpartition("\\n")[2])
"""


def test_a_file_is_read_once_whichever_process_comes_first(client: httpx.Client) -> None:
    code = CHILD + "child(code, 'key'); child(code, 'key')\ntry: open('key')\nexcept PermissionError as e: print(e)"
    policy = "read-once: ./key\nexec: python3"
    body = run(client, code, policy, files={"key": "SECRET"})
    denied = "agentbox: policy denies read /work/key"
    assert body["stdout"].splitlines() == ["SECRET", f"PermissionError: {denied}", denied], body["stderr"]
    assert [denial["reason"] for denial in body["denials"]] == ["this file was read before"]


def test_processes_share_the_bytes_below_a_cap(client: httpx.Client) -> None:
    code = CHILD + (
        "write = \"import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('x' * 700); print('wrote')\"\n"
        "child(write, 'out/a'); child(write, 'out/b'); import os; os.remove('out/a'); child(write, 'out/c')"
    )
    policy = "write: ./out max=1KB\nexec: python3"
    lines = run(client, code, policy)["stdout"].splitlines()
    assert lines == ["wrote", "PermissionError: agentbox: policy denies write /work/out/b", "wrote"]


def test_reading_and_starting_are_in_the_trace_with_hashes(client: httpx.Client) -> None:
    body = run(client, STARTS + "open('a').read(); start('ls')", "read: .\nexec: ls", files={"a": "1"})
    lines = client.get(f"/v1/runs/{body['run_id']}/trace").text.splitlines()
    records = [json.loads(line) for line in lines]
    [read] = [one for one in records if one["op"] == "fs.open_read" and one["args"]["path"] == "/work/a"]
    assert read["args"]["sha256"] == hashlib.sha256(b"1").hexdigest()
    assert read["origin"] == "guest"
    assert [one["args"]["argv"] for one in records if one["op"] == "proc.spawn"] == [["ls"]]


EXEC_ATTACKS = {
    "another program": "start('id')",
    "a shell": "start('/bin/sh', '-c', 'echo gained')",
    "a shell through the allowed name": "start('ls', '-c', 'echo gained', executable='/bin/sh')",
    "the loader": "start('/lib64/ld-linux-x86-64.so.2', '/bin/echo', 'gained')",
    "a memory file": (
        "fd = os.memfd_create('ls'); os.write(fd, open('/bin/echo', 'rb').read())\n"
        "start('ls', 'gained', executable=f'/proc/self/fd/{fd}', pass_fds=(fd,))"
    ),
    "a copy": (
        "import shutil; shutil.copy('/bin/echo', '/tmp/ls'); os.chmod('/tmp/ls', 0o755)\nstart('/tmp/ls', 'gained')"
    ),
    "a script": ("open('/tmp/s', 'w').write('#!/bin/sh\\necho gained'); os.chmod('/tmp/s', 0o755)\nstart('/tmp/s')"),
    "its own interpreter again": "start(sys.executable, '-c', 'print(\"gained\")')",
    "a name in front of PATH": (
        "import shutil; shutil.copy('/bin/echo', '/tmp/ls'); os.chmod('/tmp/ls', 0o755)\n"
        "os.environ['PATH'] = '/tmp:' + os.environ['PATH']\nstart('ls', 'gained')"
    ),
    "the system call": (
        "libc = ctypes.CDLL(None)\npid = os.fork()\n"
        "if pid == 0:\n"
        "    libc.execv(b'/bin/echo', (ctypes.c_char_p * 3)(b'ls', b'gained', None))\n    os._exit(9)\n"
        "print('ended', os.waitpid(pid, 0)[1])"
    ),
}


@pytest.mark.parametrize("attack", EXEC_ATTACKS)
def test_exec_rules_judge_what_really_runs(client: httpx.Client, attack: str) -> None:
    body = run(client, STARTS + EXEC_ATTACKS[attack], "read: .\nexec: ls")
    assert body["exit_code"] == 0, body["stderr"]
    assert "gained" not in body["stdout"], body["stdout"]
    assert body["denials"], "an attempt without a denial"
    assert {denial["effect"] for denial in body["denials"]} == {"exec"}


def test_an_allowed_program_starts_and_the_others_are_denials_with_the_missing_rule(client: httpx.Client) -> None:
    body = run(client, STARTS + "start('ls'); start('/usr/bin/id')", "read: .\nexec: ls")
    assert body["stdout"].splitlines() == ["ended 0 main.py", "refused 13"]
    [denial] = body["denials"]
    assert (denial["layer"], denial["target"]) == ("interpreter", "/usr/bin/id")
    assert (denial["rule"], denial["rule_missing"]) == (None, "exec: /usr/bin/id")
    assert run(client, STARTS + "start('/usr/bin/id', '-u')", denial["rule_missing"])["stdout"] == "ended 0 1000\n"


def test_a_denying_rule_is_named(client: httpx.Client) -> None:
    body = run(client, STARTS + "start('ls', '/')", "exec: ls\ndeny: exec ls /")
    assert body["denials"][0]["rule"] == "deny: exec ls /"
    assert "ended 0" not in body["stdout"]


def test_a_socket_that_no_box_has_is_a_denial_of_the_kernel(client: httpx.Client) -> None:
    code = """
import socket
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
except OSError as error:
    print(error.errno)
"""
    body = run(client, code, "read: .")
    assert body["stdout"] == "97\n"
    [denial] = body["denials"]
    assert (denial["layer"], denial["effect"], denial["target"]) == ("kernel", "net", "AF_PACKET SOCK_RAW")
    assert denial["hint"]


@pytest.mark.parametrize(
    ("language", "code"),
    [("node", "require('child_process').execFileSync('id')"), ("bash", "id || exit 9")],
)
def test_exec_rules_hold_for_every_language(client: httpx.Client, language: str, code: str) -> None:
    body = run(client, code, "read: .", language=language)
    assert body["exit_code"] != 0
    assert body["denials"][0]["target"] == "/usr/bin/id"
    assert body["denials"][0]["rule_missing"] == "exec: /usr/bin/id"


@pytest.fixture(scope="module")
def linked(server: RunningServer) -> str:
    """A snapshot with programs that are links."""
    code = """
import os
for name, text in (("real.sh", "#!/bin/sh\\necho ran $*"), ("fixed/real.sh", "#!/bin/sh\\necho fixed")):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    open(name, "w").write(text)
    os.chmod(name, 0o755)
os.mkdir("w")
os.symlink("real.sh", "tool")
os.symlink("../fixed/real.sh", "w/tool")
os.symlink("/bin/echo", "w/echo")
"""
    with server.client() as client:
        snapshot: str = run(client, code, snapshot=True)["snapshot_id"]
    return snapshot


@pytest.mark.parametrize("files", ["read: .", "write: ."])
def test_a_script_of_the_workspace_may_be_named_by_a_link(client: httpx.Client, linked: str, files: str) -> None:
    code = STARTS + "start('./tool', 'go'); start('/work/tool', 'go', '1'); start('./tool', 'stop'); start('./w/echo')"
    body = run(client, code, f"{files}\nexec: ./tool go\nexec: ./w/echo", snapshot_id=linked)
    assert body["stdout"].splitlines() == ["ended 0 ran go", "ended 0 ran go 1", "refused 13", "ended 0 "]


def test_a_link_that_the_program_can_turn_elsewhere_gives_no_other_script_the_rule(
    client: httpx.Client, linked: str
) -> None:
    code = STARTS + (
        "start('./w/tool')\n"
        "open('w/own.sh', 'w').write('#!/bin/sh\\necho gained'); os.chmod('w/own.sh', 0o755)\n"
        "os.remove('w/tool'); os.symlink('own.sh', 'w/tool'); start('./w/tool')"
    )
    body = run(client, code, "read: ./fixed\nwrite: ./w\nexec: ./w/tool", snapshot_id=linked)
    assert "gained" not in body["stdout"]
    assert body["denials"]


def test_variables_of_the_request_pass_by_rule_only(client: httpx.Client) -> None:
    code = "import os; print(sorted(set(os.environ) & {'A1', 'A2', 'B', 'PATH'}))"
    body = run(client, code, "env: A?", env={"A1": "1", "A2": "2", "B": "3"})
    assert body["stdout"] == "['A1', 'A2', 'PATH']\n"
    [denial] = body["denials"]
    assert (denial["effect"], denial["target"], denial["rule_missing"]) == ("env", "B", "env: B")


def test_limits_are_the_smallest_of_policy_and_request(client: httpx.Client) -> None:
    policy = "limits: timeout_seconds=9, memory_mb=200, pids=40"
    applied = run(client, "1", policy, limits={"timeout_seconds": 7, "memory_mb": 300})["limits_applied"]
    assert (applied["timeout_seconds"], applied["memory_mb"], applied["pids"]) == (7, 200, 40)


def test_a_run_without_a_policy_is_as_before(client: httpx.Client) -> None:
    body = run(client, STARTS + "open('x', 'w').write('1'); start('ls')", env={"A": "1"})
    assert body["stdout"] == "ended 0 main.py\nx\n"
    assert (body["denials"], body["trace"], body["enforcement"]["exec"]) == ([], None, "none")


def test_a_backend_without_a_wall_takes_no_policy(start_server: Callable[..., RunningServer]) -> None:
    server = start_server(AGENTBOX_ALLOWED_BACKENDS="subprocess", AGENTBOX_ALLOW_UNISOLATED="1")
    with server.client() as client:
        body = refused(client, "read: .", backend="subprocess")
    assert "no wall" in body["detail"]


WIDER = [
    "read: .\nwrite: .\nexec: ls, id, sh, python3\nenv: *\nlimits: timeout_seconds=300, memory_mb=8192, pids=4096",
    "read: /\nwrite: /\nexec: id\nenv: *",
    "write: ./secrets\nread: ./secrets/key\nexec: /usr/bin/id\nenv: OTHER",
    None,
]


@pytest.mark.parametrize("policy", WIDER)
def test_no_request_passes_the_ceiling(ceiling: RunningServer, policy: str | None) -> None:
    code = (
        STARTS
        + LOOKS
        + (
            "look('secrets/key'); look('secrets/new', 'w'); look('escaped', 'w'); start('/usr/bin/id')\n"
            "print('OTHER' in os.environ)"
        )
    )
    limits = {"timeout_seconds": 300, "memory_mb": 8192, "pids": 4096}
    with ceiling.client() as client:
        body = run(
            client, code, policy, files={"secrets/key": "SECRET"}, env={"OTHER": "1"}, limits=limits,
            return_files=["**"],
        )  # fmt: skip
    assert "SECRET" not in body["stdout"]
    assert body["stdout"].splitlines()[-2:] == ["refused 13", "False"]
    assert set(body["files"]) - {"main.py"} == {"secrets/key"}
    applied = body["limits_applied"]
    assert (applied["timeout_seconds"], applied["memory_mb"], applied["pids"]) == (20, 256, 64)
    assert {denial["effect"] for denial in body["denials"]} == {"exec", "env", "read", "write"}


def test_a_request_may_narrow_the_ceiling_further(ceiling: RunningServer) -> None:
    code = STARTS + LOOKS + "look('out/x', 'w'); start('ls'); print(os.environ.get('COLOUR'))"
    with ceiling.client() as client:
        whole = run(client, code, env={"COLOUR": "red"})
        less = run(client, code, "read: .\nenv: LANG", env={"COLOUR": "red"})
    assert whole["stdout"].splitlines() == ["out/x 1", "ended 0 main.py", "out", "red"]
    assert less["stdout"].splitlines() == ["out/x PermissionError 13", "refused 13", "None"]


def test_a_box_is_not_told_where_the_ceilings_file_is(ceiling: RunningServer) -> None:
    code = (
        "import ctypes\nlibc = ctypes.CDLL(None)\nfd = libc.open(b'/run/agentbox/policy', 0)\n"
        "text = ctypes.create_string_buffer(1 << 16)\nlibc.read(fd, text, 1 << 16)\nprint(text.value.decode())"
    )
    with ceiling.client() as client:
        told = run(client, code)["stdout"]
    assert "agentbox-guard/1" in told
    assert "ceiling.policy" not in told


def test_reasons_name_rules_of_the_ceiling_and_not_where_its_file_is(ceiling: RunningServer) -> None:
    with ceiling.client() as client:
        body = run(client, "1", env={"PRIVATE": "1"})
    [denial] = body["denials"]
    assert (denial["rule"], denial["reason"]) == (
        "deny: env PRIVATE",
        "`deny: env PRIVATE` (the ceiling:5) denies it",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["cannot be read"]),
        ("read: .\nwrte: ./x\n", [":2:1:", "did you mean"]),
        ("deny: write /\n", ["cannot start"]),
    ],
)
def test_a_ceiling_that_cannot_be_used_stops_the_start(tmp_path: Path, text: str | None, words: list[str]) -> None:
    path = tmp_path / "ceiling.policy"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    environment = {"AGENTBOX_STATE_DIR": str(tmp_path / "state"), "AGENTBOX_POLICY_CEILING": str(path)}
    done = agentbox("serve", "--port", "0", environment=environment, timeout=60)
    assert_is_told_what_to_do(done, 2, "AGENTBOX_POLICY_CEILING", *words)


def test_a_ceiling_over_a_backend_without_a_wall_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "ceiling.policy"
    path.write_text("read: .\n", encoding="utf-8")
    environment = {"AGENTBOX_STATE_DIR": str(tmp_path / "state"), "AGENTBOX_POLICY_CEILING": str(path)}
    done = agentbox(
        "serve", "--port", "0", "--backend", "subprocess", "--allow-unisolated", environment=environment, timeout=60
    )
    assert_is_told_what_to_do(done, 2, "AGENTBOX_POLICY_CEILING", "no wall")


NODE_CHILD = """
const fs = require('fs');

function attempt(act) { try { console.log(act()); } catch (error) { console.log(error.message.split('\\n')[0]); } }
"""


def test_a_guard_in_node_counts_with_the_host_too(client: httpx.Client) -> None:
    code = NODE_CHILD + (
        "attempt(() => fs.readFileSync('key', 'utf8')); attempt(() => fs.readFileSync('key', 'utf8'));\n"
        "attempt(() => { fs.writeFileSync('out/a', 'x'.repeat(700)); return 'wrote'; });\n"
        "attempt(() => { fs.writeFileSync('out/b', 'x'.repeat(700)); return 'wrote'; });\n"
    )
    body = run(client, code, "read-once: ./key\nwrite: ./out max=1KB", language="node", files={"key": "SECRET"})
    assert body["stdout"].splitlines() == [
        "SECRET",
        "agentbox: policy denies read /work/key",
        "wrote",
        "agentbox: policy denies write /work/out/b",
    ]
    assert body["enforcement"]["filesystem"] == "interpreter"
