# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""What a guarded Python program notices, and what its host hears."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.integration.guest.conftest import SECRET
from tests.integration.guest.guarded import Host

POLICY = "read: ./data\nwrite: ./out\nexec: echo\n"


def code(text: str) -> list[str]:
    return ["-c", text]


def test_denial_says_what_the_policy_denies(host: Host, python: str) -> None:
    done = host.run(POLICY, [python, *code("open('/etc/passwd')")], wall="jail")
    assert "PermissionError: agentbox: policy denies read /etc/passwd\n" in done.stderr
    assert done.of("deny", "read") == [{"target": "/etc/passwd", "enforced": True}]


def test_denial_has_an_errno_for_programs_that_look_at_it(host: Host, python: str) -> None:
    text = "try: open('/etc/passwd')\nexcept OSError as e: print(e.errno, type(e) is PermissionError, str(e))"
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout == "13 True agentbox: policy denies read /etc/passwd\n"


def test_denial_that_repeats_is_refused_and_recorded_each_time(host: Host, python: str) -> None:
    text = "for _ in range(3):\n    try: open('secret.txt')\n    except PermissionError as e: print(e)"
    done = host.run(POLICY, [python, *code(text)])
    target = f"{host.project}/secret.txt"
    assert done.stdout == f"agentbox: policy denies read {target}\n" * 3
    assert done.of("deny", "read") == [{"target": target, "enforced": True}] * 3


def test_refused_name_is_judged_anew_when_it_is_a_directory_and_again_when_it_is_a_file(
    host: Host, python: str
) -> None:
    text = (
        "import os, subprocess\n"
        "def look(program):\n"
        "    subprocess.run([program, 'other'], check=True)\n"
        "    try: os.close(os.open('other', os.O_RDONLY)); print('opened')\n"
        "    except PermissionError: print('refused')\n"
        "look('touch'); look('touch'); subprocess.run(['rm', 'other'])\n"
        "look('mkdir'); subprocess.run(['rmdir', 'other']); look('touch')"
    )
    policy = "exec: touch\nexec: rm\nexec: mkdir\nexec: rmdir\n"
    done = host.run(policy, [python, *code(text)], wall="jail")
    assert done.stdout == "refused\nrefused\nopened\nrefused\n", done.stderr


def test_read_is_recorded_with_the_hash_of_its_content(host: Host, python: str) -> None:
    done = host.run(POLICY, [python, *code("open('data/a.txt').read(); open('data/none')")])
    path = host.project / "data"
    digest = hashlib.sha256(b"hello").hexdigest()
    assert done.of("observe", "fs.open_read") == [
        {"path": f"{path}/a.txt", "sha256": digest},
        {"path": f"{path}/none", "exists": False},
    ]


def test_file_that_changes_between_reads_is_hashed_anew(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "for content in ('one', 'two', 'six'):\n"
        "    open('out/f', 'w').write(content)\n"
        "    for _ in range(3): open('out/f').read()\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    hashes = [args["sha256"] for args in done.of("observe", "fs.open_read")]
    assert hashes == [hashlib.sha256(c.encode()).hexdigest() for c in ("one", "two", "six") for _ in range(3)]


def test_unchanged_file_is_recorded_each_time_it_is_opened(host: Host, python: str) -> None:
    import os

    os.utime(host.project / "data" / "a.txt", (1, 1))
    done = host.run(POLICY, [python, *code("import time; time.sleep(0.06)\nfor _ in range(5): open('data/a.txt')")])
    assert len(done.of("observe", "fs.open_read")) == 5


def test_large_file_is_hashed_too(host: Host, python: str) -> None:
    data = b"x" * 3_000_001
    (host.project / "data" / "large").write_bytes(data)
    done = host.run(POLICY, [python, *code("for _ in range(2): open('data/large','rb').close()")])
    seen = {"path": f"{host.project}/data/large", "sha256": hashlib.sha256(data).hexdigest()}
    assert done.of("observe", "fs.open_read") == [seen, seen]


def test_name_that_is_no_text_is_recorded_as_its_bytes(host: Host, python: str) -> None:
    done = host.run(POLICY, [python, *code(r"open(b'out/\xff', 'w').close()")])
    assert list(done.of("observe", "fs.open_write")[0]["path"]) == ["b64"]


def test_changes_of_names_are_recorded_before_they_happen(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "os.mkdir('out/d'); open('out/d/f','w').close(); os.rename('out/d/f','out/g'); os.link('out/g','out/h')\n"
        "os.symlink('g','out/s'); os.chmod('out/g', 0o600); os.truncate('out/g', 3); os.remove('out/h'); os.rmdir('out/d')\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.exit_code == 0, done.stderr
    ops = [(r.op, r.ack) for r in done.records]
    names = ["mkdir", "open_write", "rename", "link", "symlink", "chmod", "truncate", "remove", "remove"]
    assert ops == [(f"fs.{name}", True) for name in names]


def test_what_the_host_refuses_does_not_happen(host: Host, python: str) -> None:
    host.refuses = frozenset({"fs.open_write"})
    done = host.run(POLICY, [python, *code("open('out/x','w')")])
    assert "PermissionError: agentbox: the host says no" in done.stderr
    assert not (host.project / "out" / "x").exists()


def test_program_is_recorded_with_the_file_that_runs(host: Host, python: str) -> None:
    text = "import subprocess, os; subprocess.run(['echo','a'], check=True); os.system('echo b')"
    done = host.run(POLICY, [python, *code(text)])
    spawned = done.of("observe", "proc.spawn")
    assert [args["argv"] for args in spawned] == [["echo", "a"]]
    assert spawned[0]["program"].startswith("/")
    [denied] = done.of("deny", "exec")
    assert (denied["target"], denied["enforced"], denied["argv"]) == ("sh -c echo b", True, ["sh", "-c", "echo b"])
    assert denied["program"] == str(Path("/bin/sh").resolve())


def test_observing_denies_nothing_and_says_what_it_would(host: Host, python: str) -> None:
    done = host.run(POLICY, [python, *code("print(open('secret.txt').read())")], enforce=False, wall="jail")
    assert done.stdout.strip() == SECRET
    assert done.stderr == f"agentbox[observe]: would deny read {host.project}/secret.txt\n"
    assert done.of("deny", "read") == [{"target": f"{host.project}/secret.txt", "enforced": False}]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("AGENTBOX_POLICY", "", "AGENTBOX_POLICY names no policy"),
        ("AGENTBOX_POLICY", "/nowhere", "cannot read the policy"),
        ("AGENTBOX_POLICY", "{base}/damaged", "is damaged"),
        ("AGENTBOX_POLICY", "{base}/wrong", "the policy is wrong"),
        ("AGENTBOX_CHANNEL", "", "AGENTBOX_CHANNEL names no channel"),
        ("AGENTBOX_CHANNEL", "/nowhere", "there is no channel"),
        ("AGENTBOX_CHANNEL", "/dev/null", "is no socket"),
        ("AGENTBOX_MODE", "recrod", "AGENTBOX_MODE"),
        ("AGENTBOX_ENFORCE", "yes", "AGENTBOX_ENFORCE"),
        ("AGENTBOX_WALL", "jial", "AGENTBOX_WALL"),
    ],
)
def test_guard_that_cannot_arm_lets_nothing_run(host: Host, name: str, value: str, reason: str) -> None:
    import sys

    (host.base / "damaged").write_text('{"format":"agentbox-guard/1"')
    (host.base / "wrong").write_text("raed: ./x\n")
    done = host.run(POLICY, [sys.executable, *code("print('ran')")], variables={name: value.format(base=host.base)})
    assert done.exit_code == 70
    assert done.stdout == ""
    assert done.stderr.startswith("agentbox: failed to arm sandbox, refusing to run: ")
    assert reason in done.stderr


def test_policy_may_also_be_text(host: Host, python: str) -> None:
    (host.base / "text").write_text(POLICY)
    done = host.run(
        "",
        [python, *code("print(open('data/a.txt').read()); open('secret.txt')")],
        variables={"AGENTBOX_POLICY": str(host.base / "text")},
    )
    assert done.stdout == "hello\n", done.stderr
    assert "agentbox: policy denies read" in done.stderr


def test_sitecustomize_of_the_environment_has_its_turn(host: Host, python: str) -> None:
    own = host.base / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own')\n")
    guards = host.run(POLICY, [python, *code("import sys; print(sys.path[1])")])
    assert "guard" not in guards.stdout
    import os

    directory = next(host.guards.glob("guard-*"))
    done = host.run(POLICY, [python, *code("pass")], variables={"PYTHONPATH": f"{directory}{os.pathsep}{own}"})
    assert done.stdout == "own\n", done.stderr


def test_what_the_program_leaves_open_is_written_and_ended_as_without_a_guard(host: Host, python: str) -> None:
    text = (
        "import __main__, os\n"
        "class Left:\n"
        "    def __del__(self): os.write(1, b'ended\\n')\n"
        "file = open('out/left.txt', 'w'); file.write('all of it')\n"
        "left = Left(); left.itself = left, file, lambda: file\n"
        "import gc; print(vars(__main__) is globals(), gc.isenabled(), flush=True)"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout == "True True\nended\n", done.stderr
    assert (host.project / "out/left.txt").read_text() == "all of it"


def test_each_process_has_a_connection_of_its_own(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "open('data/a.txt')\n"
        "if os.fork() == 0:\n"
        "    open('data/a.txt'); os._exit(0)\n"
        "os.wait(); os.closerange(3, 1024); open('out/x', 'w')\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.exit_code == 0, done.stderr
    # Nobody waits for the record of a read, so the child's may come after the parent's write.
    assert sorted(r.op for r in done.records) == ["fs.open_read", "fs.open_read", "fs.open_write"]


def test_threads_and_tasks_have_lanes(host: Host, python: str) -> None:
    text = (
        "import asyncio, threading\n"
        "t = threading.Thread(target=lambda: open('data/a.txt')); t.start(); t.join()\n"
        "async def main():\n"
        "    open('data/a.txt')\n"
        "open('data/a.txt'); asyncio.run(main())\n"
    )
    done = host.run(POLICY, [python, *code(text)], wall="jail")
    assert done.exit_code == 0, done.stderr
    thread, main, in_loop = [r.lane for r in done.records]
    assert thread in ("main.0", "Thread-1 (<lambda>)", "Thread-1")
    assert (main, in_loop) == ("main", "main/Task-1")


def test_denial_leaves_nothing_of_the_guard_in_its_traceback(host: Host, python: str) -> None:
    text = (
        "try: open('/etc/passwd')\n"
        "except PermissionError as e:\n"
        "    tb = e.__traceback__.tb_next\n"
        "    print(sorted(k for k, v in tb.tb_frame.f_locals.items() if v is not None), tb.tb_next, e.__context__)\n"
        "    print('Answers' in tb.tb_frame.f_globals)\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout == "['error'] None None\nFalse\n", done.stderr


def test_modules_of_the_guard_are_nowhere_to_be_found(host: Host, python: str) -> None:
    text = (
        "import sys, os\n"
        "print([n for n in sys.modules if 'agentbox' in n])\n"
        "print([c.__name__ for c in object.__subclasses__() if 'agentbox_guard' in c.__module__ and\n"
        "       [f for f in vars(c).values() if callable(f) and hasattr(f, '__code__')]\n"
        "       and c.__name__ not in ('Finder', 'Loader')])\n"
        "print(os.open.__func__.__closure__ and [type(c.cell_contents).__name__ for c in os.open.__func__.__closure__])\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout == "[]\n[]\n['bool', 'builtin_function_or_method']\n", done.stderr


def test_replaced_builtins_change_nothing_for_the_guard(host: Host, python: str) -> None:
    text = (
        "import builtins, hashlib, json, time, posixpath, os\n"
        "for name in ('len', 'sorted', 'any', 'isinstance', 'tuple', 'str', 'list', 'issubclass', 'type'):\n"
        "    setattr(builtins, name, lambda *a, **k: 1)\n"
        "hashlib.sha256 = json.dumps = time.time = None\n"
        "os.lstat = os.stat = os.readlink = posixpath.realpath = lambda *a, **k: None\n"
        "try: open('secret.txt')\n"
        "except PermissionError as e: print(e)\n"
        "open('data/a.txt')\n"
    )
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout.startswith("agentbox: policy denies read"), done.stderr
    assert [args["sha256"] for args in done.of("observe", "fs.open_read")] == [hashlib.sha256(b"hello").hexdigest()]


def test_imports_are_not_recorded_and_open_no_hole(host: Host, python: str) -> None:
    (host.project / "entry.py").write_text("import json, beside; print(beside.x)\nopen('notes.env')\n")
    (host.project / "beside.py").write_text("x = 5\n")
    (host.project / "notes.env").write_text(SECRET)
    done = host.run(POLICY, [python, "entry.py"], entry=str(host.project / "entry.py"))
    assert done.stdout == "5\n", done.stderr
    assert [(r.kind, r.op) for r in done.records] == [("deny", "read")]


def test_file_opened_by_its_link_is_judged_by_where_it_leads(host: Host, python: str) -> None:
    (host.project / "data" / "link").symlink_to("../secret.txt")
    (host.project / "inward").symlink_to("data/a.txt")
    text = "print(open('inward').read())\nopen('data/link')"
    done = host.run(POLICY, [python, *code(text)])
    assert done.stdout == "hello\n"
    assert done.of("deny", "read") == [{"target": f"{host.project}/secret.txt", "enforced": True}]


@pytest.mark.parametrize("mode", ["w", "a", "r+", "x"])
def test_cap_holds_for_every_way_of_writing(host: Host, python: str, mode: str) -> None:
    (host.project / "out" / "old").write_text("x")
    name = "new" if mode == "x" else "old"
    text = f"f = open('out/{name}', '{mode}'); f.write('y' * 500); f.flush(); f.write('y' * 900); f.close()"
    done = host.run("write: ./out max=1KB\n", [python, *code(text)])
    assert "policy denies write" in done.stderr
    assert (host.project / "out" / name).stat().st_size <= 1024


def test_cap_leaves_room_for_what_fits(host: Host, python: str) -> None:
    text = (
        "import os, pathlib\n"
        "pathlib.Path('out/a').write_text('x' * 400)\n"
        "with open('out/b', 'wb') as f: f.write(b'x' * 400)\n"
        "os.unlink('out/a')\n"
        "fd = os.open('out/c', os.O_WRONLY | os.O_CREAT); os.write(fd, b'x' * 500); os.close(fd)\n"
        "print(open('out/b').read() == 'x' * 400)\n"
    )
    done = host.run("write: ./out max=1KB\n", [python, *code(text)])
    assert done.stdout == "True\n", done.stderr


def test_file_is_read_once_whatever_its_name(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "print(open('data/a.txt').read())\n"
        "for path in ('data/a.txt', './data/../data/a.txt', os.path.abspath('data/a.txt'), 'data/hard'):\n"
        "    try: print(open(path).read())\n"
        "    except PermissionError: print('no')\n"
    )
    Path(host.project / "data" / "hard").hardlink_to(host.project / "data" / "a.txt")
    done = host.run("read-once: ./data/a.txt\nread: ./data/hard\n", [python, *code(text)])
    assert done.stdout.split() == ["hello", "no", "no", "no", "no"], done.stderr
    assert done.of("observe", "fs.open_read")[0]["once"] is True


def test_cap_holds_for_a_process_and_its_child_together(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "def write(name):\n"
        "    try:\n"
        "        with open(name, 'w') as f: f.write('x' * 700)\n"
        "        return 0\n"
        "    except PermissionError: return 1\n"
        "failed = write('out/a')\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(write('out/b'))\n"
        "print(failed, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    done = host.run("write: ./out max=1KB\n", [python, *code(text)])
    assert done.stdout == "0 1\n", done.stderr


def test_cap_that_is_only_observed_is_said_and_lets_the_program_go_on(host: Host, python: str) -> None:
    text = "open('out/a', 'w').write('x' * 2000); print('went on')"
    done = host.run("write: ./out max=1KB\n", [python, *code(text)], enforce=False)
    assert done.stdout == "went on\n", done.stderr
    assert "agentbox[observe]: would deny write" in done.stderr


def test_file_is_read_once_by_all_processes_together(host: Host, python: str) -> None:
    text = (
        "import os\n"
        "def read(flags):\n"
        "    try: os.close(os.open('data/a.txt', flags)); return 0\n"
        "    except PermissionError: return 1\n"
        "pid = os.fork()\n"
        "if not pid: os._exit(read(os.O_RDONLY))\n"
        "first = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "print(first, read(os.O_RDONLY), read(os.O_RDWR))\n"
    )
    done = host.run("read-once: ./data/a.txt\nwrite: ./data\n", [python, *code(text)])
    assert done.stdout == "0 1 1\n", done.stderr


def test_private_directory_needs_no_rule_but_what_is_lent_within_it_does(host: Host, python: str) -> None:
    lent = host.base / "private" / "lent"
    lent.mkdir(parents=True)
    text = f"import tempfile\nwith tempfile.NamedTemporaryFile('w') as f: f.write('x')\nopen('{lent}/x', 'w')"
    done = host.run(f"read: {lent}\n", [python, *code(text)], wall="jail")
    assert [(r.kind, r.op) for r in done.records] == [("deny", "write")], done.stderr
