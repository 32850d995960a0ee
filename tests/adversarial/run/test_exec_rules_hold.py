# SPDX-License-Identifier: MIT
"""Every way to start a program that the old runtime's guard let through, and more: the exec judge sees each."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.policy_run import Project, has_program

pytestmark = pytest.mark.linux

# What each attempt runs when nothing stops it; PWNED is printed by the program, not by the attempt.
ATTEMPTS = {
    "execv_with_another_name": "os.execv('/bin/sh', ['echo', '-c', 'echo PWN''ED'])",
    "posix_spawn": "wait(os.posix_spawn('/bin/sh', ['echo', '-c', 'echo PWN''ED'], {}))",
    "posix_spawn_of_an_isolated_python": (
        "wait(os.posix_spawn('/usr/bin/python3', ['echo', '-I', '-c', 'print(\"PWN\" \"ED\")'], {}))"
    ),
    "subprocess_with_executable": "subprocess.run(['echo', '-c', 'echo PWN''ED'], executable='/bin/sh')",
    "fork_exec": (
        "import _posixsubprocess as p; r, w = os.pipe(); "
        "wait(p.fork_exec([b'sh', b'-c', b'echo PWN' b'ED'], [b'/bin/sh'], True, (w,), None, None, -1, -1, -1, -1, -1,"
        " -1, r, w, False, False, -1, None, None, None, -1, None, False))"
    ),
    "spawnv_passfds": (
        "import multiprocessing.util as u; wait(u.spawnv_passfds(b'/bin/sh', [b'echo', b'-c', b'echo PWN' b'ED'], []))"
    ),
    "system_with_more_behind": "os.system('echo x; ls /')",
    "shell_with_a_quote_that_never_ends": "os.system(\"ls / #'\")",
    "pty_spawn": "import pty; pty.spawn(['/bin/sh', '-c', 'echo PWN''ED'])",
    "link_to_the_shell": "os.symlink('/bin/sh', 'out/echo'); subprocess.run(['out/echo', '-c', 'echo PWN''ED'])",
    "copy_of_the_shell": (
        "import shutil; shutil.copy('/bin/sh', 'out/echo'); subprocess.run(['out/echo', '-c', 'echo PWN''ED'])"
    ),
    "script_of_that_name": (
        "open('out/echo', 'w').write('#!/bin/sh\\necho PWN''ED\\n'); os.chmod('out/echo', 0o755);"
        " subprocess.run(['out/echo'])"
    ),
    "script_of_that_name_on_path": (
        "open('out/echo', 'w').write('#!/bin/sh\\necho PWN''ED\\n'); os.chmod('out/echo', 0o755);"
        " os.environ['PATH'] = os.path.abspath('out'); os.execvp('echo', ['echo'])"
    ),
    "script_through_env": (
        "open('out/t', 'w').write('#!/usr/bin/env sh\\necho PWN''ED\\n'); os.chmod('out/t', 0o755);"
        " subprocess.run(['out/t'])"
    ),
    "dynamic_loader": (
        "import glob; subprocess.run([glob.glob('/lib*/ld-linux*.so*')[0], '/bin/sh', '-c', 'echo PWN''ED'])"
    ),
    "memory_file": (
        "fd = os.memfd_create('echo', 0); os.write(fd, open('/bin/sh', 'rb').read());"
        " os.execve(fd, ['echo', '-c', 'echo PWN''ED'], {})"
    ),
    "fexecve": "os.execve(os.open('/bin/sh', os.O_RDONLY), ['echo', '-c', 'echo PWN''ED'], {})",
    "execveat_with_an_empty_path": (
        "import ctypes; a = (ctypes.c_char_p * 4)(b'echo', b'-c', b'echo PWN' b'ED', None);"
        " nr = 322 if os.uname().machine == 'x86_64' else 281;"
        " ctypes.CDLL(None).syscall(nr, os.open('/bin/sh', os.O_PATH), b'', a, None, 0x1000)"
    ),
    "raw_execve": (
        "import ctypes; a = (ctypes.c_char_p * 4)(b'echo', b'-c', b'echo PWN' b'ED', None);"
        " ctypes.CDLL(None).execve(b'/bin/sh', a, None)"
    ),
    "vfork_in_a_thread": (
        "import threading; t = threading.Thread(target=lambda: subprocess.run(['sh', '-c', 'echo PWN''ED']));"
        " t.start(); t.join()"
    ),
    "subinterpreter": (
        "import _xxsubinterpreters as i; i.run_string(i.create(), 'import os; os.system(\"ls /\")')"
    ),
    "the_command_s_own_words_again": "wait(os.posix_spawn(sys.executable, ['python3', '-c', sys.argv[1]], {}))",
    "proc_self_exe": "wait(os.posix_spawn('/proc/self/exe', ['echo', '-c', 'print(\"PWN\" \"ED\")'], {}))",
}  # fmt: skip
_START = (
    "import os, subprocess, sys\n"
    "def wait(pid): os.waitpid(pid, 0)\n"
    "sys.stdout.flush()\n"
    "try: {}\n"
    "except BaseException as error: print('refused', type(error).__name__)\n"
)


@pytest.mark.parametrize("flags", [(), ("-I", "-S", "-E")], ids=["guarded", "isolated"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_program_runs_that_no_rule_allows(project: Project, name: str, flags: tuple[str, ...]) -> None:
    done = project.run("/usr/bin/python3", *flags, "-c", _START.format(ATTEMPTS[name]), "print('PWN' 'ED')")
    assert "PWNED" not in done.text, done
    assert "\nusr\n" not in done.text, done
    assert all(exe.endswith(("/echo", "/env", *_pythons())) for exe in done.started()), done.started()
    assert project.verdict()[0] == 0


def _pythons() -> tuple[str, ...]:
    return (str(Path("/usr/bin/python3").resolve()),)


def test_the_attempts_would_work_if_rules_allowed_them(project: Project) -> None:
    project.policy("read: ./data", "write: ./out", "exec: sh, ls, python3")
    done = project.run("/usr/bin/python3", "-I", "-c", _START.format(ATTEMPTS["vfork_in_a_thread"]))
    assert "PWNED" in done.text, done


def test_an_allowed_program_runs_however_it_is_started(project: Project) -> None:
    code = (
        "import os, subprocess, threading\n"
        "subprocess.run(['echo', 'one'])\n"
        "os.waitpid(os.posix_spawn('/bin/echo', ['echo', 'three'], {}), 0)\n"
        "ts = [threading.Thread(target=subprocess.run, args=(['echo', 'four'],)) for _ in range(8)]\n"
        "[t.start() for t in ts]; [t.join() for t in ts]\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert done.text.count("four") == 8, done
    assert all(word in done.text for word in ("one", "three")), done
    assert not done.denials()


def test_a_denied_program_is_recorded_by_the_kernel_s_witness(project: Project) -> None:
    done = project.run("/usr/bin/python3", "-I", "-c", "import os; os.execv('/bin/ls', ['echo'])")
    (target,) = done.denials()
    assert target.endswith("/ls")
    assert done.exit_code == 1


def test_words_are_held_as_well_as_programs(project: Project) -> None:
    project.policy("exec: echo good")
    for words, fine in ((["echo", "good", "more"], True), (["echo", "evil"], False), (["echo"], False)):
        code = f"import os; os.execv('/bin/echo', {words!r})"
        done = project.run("/usr/bin/python3", "-I", "-c", code)
        assert (done.exit_code == 0) is fine, (words, done)


def test_words_rewritten_by_a_sibling_at_the_last_moment_do_not_count(project: Project) -> None:
    project.policy("exec: echo good")
    code = (
        "import ctypes, os, threading\n"
        "libc = ctypes.CDLL(None); word = ctypes.create_string_buffer(b'good'); stop = False\n"
        "def flip():\n"
        "    while not stop: word.value = b'evil'; word.value = b'good'\n"
        "threading.Thread(target=flip, daemon=True).start()\n"
        "argv = (ctypes.c_char_p * 3)(b'echo', ctypes.cast(word, ctypes.c_char_p), None)\n"
        "for _ in range(200):\n"
        "    pid = ctypes.c_int(0)\n"
        "    if libc.posix_spawn(ctypes.byref(pid), b'/bin/echo', None, None, argv, None) == 0:\n"
        "        os.waitpid(pid.value, 0)\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    words = [line for line in done.text.splitlines() if not line.startswith("agentbox")]
    assert "evil" not in words, done
    assert set(words) <= {"good"}


def test_threads_that_execute_at_once_leave_nothing_unjudged(project: Project) -> None:
    stage = project.file("data/stage.py", "import os\nos.execv('/bin/echo', ['echo', 'EVIL'])\n")
    real = Path("/usr/bin/python3").resolve()
    project.policy("read: ./data", f"exec: {real} -I {stage}", "exec: echo good")
    code = (
        "import ctypes, os, threading\n"
        "libc = ctypes.CDLL(None)\n"
        f"argv = (ctypes.c_char_p * 4)(b'{real.name}', b'-I', {str(stage)!r}.encode(), None)\n"
        "for _ in range(40):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        line = threading.Barrier(4)\n"
        f"        go = lambda: (line.wait(), libc.execve({str(real)!r}.encode(), argv, (ctypes.c_char_p * 1)(None)))\n"
        "        for _ in range(3): threading.Thread(target=go, daemon=True).start()\n"
        "        go(); os._exit(9)\n"
        "    os.waitpid(pid, 0)\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert "EVIL" not in done.text, done
    assert len([exe for exe in done.started() if exe == str(real)]) == 41, done.started()


def test_processes_that_are_killed_or_stopped_while_they_execute_hold_nobody_up(project: Project) -> None:
    code = (
        "import os, signal\n"
        "for number in (signal.SIGKILL, signal.SIGSTOP) * 20:\n"
        "    pid = os.fork()\n"
        "    if pid == 0: os.execv('/bin/echo', ['echo', 'child'])\n"
        "    os.kill(pid, number); os.kill(pid, signal.SIGCONT) if number == signal.SIGSTOP else None\n"
        "    os.waitpid(pid, 0)\n"
        "os.execv('/bin/echo', ['echo', 'done'])\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert done.exit_code == 0, done
    assert "done" in done.text


def test_a_script_is_what_is_judged_not_its_interpreter(project: Project) -> None:
    project.file("data/tool.sh", "#!/bin/sh\necho tool $1\n", 0o755)
    project.file("data/other.sh", "#!/bin/sh\necho PWNED\n", 0o755)
    project.file("data/env.py", "#!/usr/bin/env python3\nprint('through env')\n", 0o755)
    project.policy("read: ./data", "exec: ./data/tool.sh, ./data/env.py")
    code = (
        "import subprocess\n"
        "for path in ('data/tool.sh', 'data/env.py', 'data/other.sh'):\n"
        "    try: subprocess.run([path, 'word'])\n"
        "    except OSError as error: print(path, 'refused')\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert "tool word" in done.text, done
    assert "through env" in done.text, done
    assert "PWNED" not in done.text, done


def test_env_starts_no_interpreter_that_the_box_put_on_its_path(project: Project) -> None:
    project.file("data/env.py", "#!/usr/bin/env python3\nprint('fine')\n", 0o755)
    project.policy("read: ./data", "write: ./out", "exec: ./data/env.py")
    code = (
        "import os, shutil, subprocess\n"
        "shutil.copy('/bin/sh', 'out/python3')\n"
        "os.environ['PATH'] = os.path.abspath('out')\n"
        "subprocess.run(['data/env.py'])\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert any("python3" in target for target in done.denials()), done
    assert not any("/out/" in exe for exe in done.started())


def test_a_script_named_by_a_link_of_the_box_does_not_run(project: Project) -> None:
    project.file("data/tool.sh", "#!/bin/sh\necho tool\n", 0o755)
    project.policy("read: ./data", "write: ./out", "exec: ./data/tool.sh")
    code = "import os, subprocess; os.symlink('../data/tool.sh', 'out/link'); subprocess.run(['out/link'])"
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert "tool\n" not in done.text, done
    assert done.denials()


def test_git_brings_its_own_programs_and_no_others(project: Project) -> None:
    if not has_program("git"):
        pytest.skip("there is no git")
    project.policy("write: ./out", "exec: git")
    code = (
        "import subprocess\n"
        "print(subprocess.run(['git', 'init', '-q', 'out/repo']).returncode)\n"
        "print(subprocess.run(['git', '-C', 'out/repo', 'status', '--short']).returncode)\n"
        "print(subprocess.run(['git', '-c', 'alias.x=!ls /', 'x']).returncode == 0)\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert done.text.splitlines()[:2] == ["0", "0"], done
    assert "False" in done.text, done


def test_a_program_that_cannot_be_read_is_refused(project: Project) -> None:
    tool = shutil.copy("/bin/echo", project.directory / "data" / "closed")
    Path(tool).chmod(0o111)
    project.policy("read: ./data", "exec: ./data/closed")
    done = project.run("/usr/bin/python3", "-I", "-c", "import os; os.execv('data/closed', ['closed', 'PWNED'])")
    assert "PWNED" not in done.text or not done.denials()


def test_a_static_binary_is_held_by_the_same_rules(project: Project, tmp_path: Path) -> None:
    if not has_program("cc"):
        pytest.skip("there is no C compiler")
    source = tmp_path / "agent.c"
    source.write_text(
        "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n"
        "int main(int n, char **v) { int fd = open(v[1], O_RDONLY); char b[99]; int k = fd < 0 ? 0 : read(fd, b, 99);\n"
        '  printf("read %d\\n", k); fflush(stdout);\n'
        '  execl("/bin/sh", "echo", "-c", "echo PWNED", (char *)0); return 3; }\n'
    )
    if subprocess.run(["cc", "-static", "-o", project.directory / "data" / "agent", source]).returncode:
        pytest.skip("nothing static can be built here")
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    done = project.run("data/agent", str(secret))
    assert done.text.startswith("read 0\n"), done
    assert "PWNED" not in done.text
    assert done.exit_code == 3
