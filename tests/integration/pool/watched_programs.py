# SPDX-License-Identifier: MIT
"""Programs under policies: what the kernel, the exec judge, the guard and the host each have to say about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.adversarial.run.test_exec_rules_hold import ATTEMPTS

_LOOKS = """
import os
def look(path, mode="r"):
    try:
        with open(path, mode) as file:
            print(path, file.read() if mode == "r" else file.write("x"))
    except OSError as error:
        print(path, type(error).__name__, error.errno, error)
"""
_STARTS = """
import os, subprocess, sys
def start(*argv, **more):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, **more)
    except OSError as error:
        print("refused", error.errno, error)
    else:
        print("ended", done.returncode, done.stdout.strip(), done.stderr.strip())
"""
_ATTEMPT = (
    "import os, subprocess, sys\n"
    "def wait(pid): print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    "os.makedirs('out', exist_ok=True)\n"
    "sys.stdout.flush()\n"
    "try: {}\n"
    "except BaseException as error: print('refused', type(error).__name__)\n"
)
_TREE = {"in/a": "A", "in/secret": "S", "in/deep/b": "B", "out/old": "O", "other": "X", "in/.env": "K=1"}
_EVERYWHERE = _LOOKS + (
    "for path in ('in/a', 'in/secret', 'in/deep/b', 'out/old', 'other', 'in/.env', 'main.py', '/etc/passwd',\n"
    "             '/root/x',\n"
    "             '/run/agentbox/policy', '/run/agentbox/guard/sitecustomize.py'):\n"
    "    look(path)\n"
    "for path in ('in/a', 'in/new', 'in/secret', 'out/old', 'out/new', 'new', 'main.py', '/tmp/t', '/dev/shm/s',\n"
    "             '/run/agentbox/policy', '/run/agentbox/x', '/usr/x', 'out/a/b'):\n"
    "    look(path, 'w')\n"
)
# The same from below the guard.
_UNGUARDED = (
    "import ctypes, os\n"
    "c = ctypes.CDLL(None, use_errno=True)\n"
    "c.open.restype = ctypes.c_int\n"
    "for path in (b'in/a', b'in/secret', b'in/deep/b', b'other', b'/run/agentbox/policy'):\n"
    "    fd = c.open(path, 0); print(path, fd >= 0, ctypes.get_errno())\n"
    "for path in (b'in/a', b'in/new', b'in/secret', b'out/old', b'out/new', b'new', b'main.py', b'/tmp/t', b'/usr/x',\n"
    "             b'/run/agentbox/policy', b'/run/agentbox/channel', b'/run/agentbox/x'):\n"
    "    fd = c.open(path, 0o101, 0o644); print(path, fd >= 0, ctypes.get_errno())\n"
    "print(c.chmod(b'in/secret', 0o777), ctypes.get_errno())\n"
    "print(sorted(os.listdir('.')), sorted(os.listdir('in')) if os.path.isdir('in') else '')\n"
    "print(c.umount2(b'/work/in/secret', 2), ctypes.get_errno())\n"
)
_FACTS = """
import os
facts = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Groups"):
    print(name, facts.get(name, "").strip())
print(os.getuid(), os.getgid(), os.umask(0o22), os.getcwd(), os.getsid(0) == os.getpid())
import resource
for name in ("CORE", "NOFILE", "NPROC", "MEMLOCK", "MSGQUEUE"):
    print(name, resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
for path in ("/work", "/work/in", "/work/out", "/run/agentbox/channel", "/run/agentbox/policy", "/tmp"):
    try:
        found = os.stat(path)
        print(path, oct(found.st_mode), found.st_uid, found.st_gid, os.statvfs(path).f_flag & 7)
    except OSError as error:
        print(path, error.errno)
"""
_GUARD_FACTS = """
import os, sys
print([name for name in sys.path])
print(sorted(name for name in os.environ if name.startswith(("AGENTBOX", "PYTHON", "NODE"))))
print({name: os.environ[name] for name in sorted(os.environ) if name.startswith(("AGENTBOX", "PYTHON", "NODE"))})
print("sitecustomize" in sys.modules, any("guard" in name for name in sys.modules), type(sys.meta_path[0]).__name__)
print(os.open.__name__, os.mkfifo in os.supports_dir_fd, os.open in os.supports_dir_fd)
"""


@dataclass(frozen=True)
class Watched:
    """A program and its policy, None for a trace alone."""

    code: str
    policy: str | None
    more: dict[str, Any] = field(default_factory=dict)


def _on_tree(code: str, policy: str | None) -> Watched:
    return Watched(code, policy, {"files": _TREE})


_VIEWS = {
    "read_in_write_out": "read: ./in\nwrite: ./out",
    "read_all": "read: .",
    "write_all": "write: .",
    "nothing": "env: A",
    "write_out_only": "write: ./out",
    "write_a_file_that_is_not_there": "write: ./out/new\nread: ./in",
    "deny_a_file": "write: .\ndeny: read ./in/secret",
    "deny_writing": "write: .\ndeny: write ./in\ndeny: write ./other",
    "deny_a_directory": "read: .\nwrite: ./out\ndeny: read ./in",
    "deny_by_pattern": "write: .\ndeny: read ./**/secret",
    "protect": "write: .\nprotect: on",
    "write_by_pattern": "read: .\nwrite: ./out/n*",
    "read_within_write": "write: .\nread: ./in",
    "scratch_denied": "read: .\ndeny: write /tmp",
}
VIEWS = {f"{name}_seen_by_{who}": _on_tree(code, policy) for name, policy in _VIEWS.items()
         for who, code in (("python", _EVERYWHERE), ("the_kernel", _UNGUARDED))}  # fmt: skip

COUNTED = {
    "read_once": _on_tree(
        _LOOKS + "look('in/a'); look('in/a'); look('./in/../in/a')", "read-once: ./in/a\nread: ./out"
    ),
    "read_once_in_another_process": _on_tree(
        _LOOKS + "pid = os.fork()\nif pid == 0:\n    look('in/a')\n    import sys; sys.stdout.flush(); os._exit(0)\n"
        "os.waitpid(pid, 0)\nlook('in/a')",
        "read-once: ./in/a",
    ),
    "cap": _on_tree(
        "for size in (10, 500, 600, 100):\n"
        "    try:\n"
        "        with open(f'out/{size}', 'w') as file: file.write('x' * size)\n"
        "        print(size, 'written')\n"
        "    except OSError as error: print(size, error)",
        "write: ./out max=1KB",
    ),
}

EXEC = {
    **{
        name: Watched(_ATTEMPT.format(attempt), "read: .\nwrite: ./out\nexec: echo")
        for name, attempt in ATTEMPTS.items()
    },
    **{
        f"{name}_with_sh_allowed": Watched(_ATTEMPT.format(ATTEMPTS[name]), "write: .\nexec: sh, env, python3")
        for name in (
            *("execv_with_another_name", "posix_spawn", "fexecve", "memory_file", "script_of_that_name", "pty_spawn"),
            *("script_through_env", "dynamic_loader", "vfork_in_a_thread", "raw_execve", "proc_self_exe"),
        )
    },
    "echo_is_allowed": Watched(_STARTS + "start('echo', 'a'); start('/bin/echo', 'b'); start('ls')", "exec: echo"),
    "words_are_held": Watched(_STARTS + "start('echo', 'a'); start('echo', 'b', 'c')", "exec: echo b"),
    "denied_words": Watched(_STARTS + "start('ls', '/'); start('ls', '/dev/shm')", "exec: ls\ndeny: exec ls /"),
    "exec_of_main": Watched("import os; os.execv('/bin/echo', ['echo', 'replaced'])", "exec: echo"),
    "exec_of_main_denied": Watched(
        "import os\ntry: os.execv('/bin/ls', ['ls'])\nexcept OSError as e: print(e)", "exec: echo"
    ),
    "exec_of_main_below_the_guard": Watched(
        "import ctypes; a = (ctypes.c_char_p * 2)(b'ls', None); print(ctypes.CDLL(None).execve(b'/bin/ls', a, None))",
        "exec: echo",
    ),
    "fork_runs_on": Watched(
        "import os, sys\npid = os.fork()\nif pid == 0:\n    open('out/x', 'w').write('1'); os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "write: ./out",
    ),
    "script_of_the_workspace": Watched(
        "import os\nos.chmod('tool', 0o755)\n" + _STARTS + "start('./tool', 'go'); start('./tool', 'stop')",
        "write: .\nexec: ./tool go",
        {"files": {"tool": "#!/bin/sh\necho ran $*\n"}},
    ),
    "python_in_python": Watched(
        _STARTS + "start('python3', '-c', 'open(\"out/x\", \"w\"); open(\"y\", \"w\")')", "write: ./out\nexec: python3"
    ),
    "spawn_and_no_wait": Watched("import subprocess; subprocess.run(['echo', 'x']); print(1)", "exec: echo"),
}  # fmt: skip

SURROUNDINGS = {
    "facts_of_the_process": _on_tree(_FACTS, "read: ./in\nwrite: ./out"),
    "facts_with_all_shown": _on_tree(_FACTS, "write: ."),
    "facts_without_a_policy": Watched(_FACTS, None),
    "guard_s_facts": Watched(_GUARD_FACTS, "read: ."),
    "variables": Watched(
        "import os; print(sorted(set(os.environ) & {'A1', 'A2', 'B', 'PATH'}))", "env: A?",
        {"env": {"A1": "1", "A2": "2", "B": "3"}},
    ),
    "arguments": Watched("import sys; print(sys.argv)", "read: .", {"args": ["a", "b c", "\u00e9"]}),
    "input": Watched("print(input())", "read: .", {"stdin": "words\n"}),
    "files_come_back": Watched(
        "open('out/made', 'w').write('M')", "write: ./out", {"files": _TREE, "return_files": ["out/made", "in/a"]}
    ),
    "error": Watched("1 / 0", "read: ."),
    "error_in_a_guarded_call": Watched("open('/root/x')", "read: ."),
    "exit_code": Watched("import sys; sys.exit(7)", "read: ."),
    "killed": Watched("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "read: ."),
    "loads_modules": Watched("import json, socket, subprocess, threading; print(json.dumps([1]))", "read: ."),
    "network": Watched(
        "import socket\nfor host in ('127.0.0.1', '10.0.0.1'):\n"
        "    try: socket.create_connection((host, 9), 1)\n    except OSError as e: print(e)\n"
        "try: print(socket.getaddrinfo('example.com', 80))\nexcept OSError as e: print(e)",
        "read: .",
    ),
    "unix_sockets": Watched(
        "import socket\ns = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect('/run/agentbox/channel'); print('connected')\nexcept OSError as e: print(e)",
        "read: .",
    ),
    "refused_sockets": Watched(
        "import socket\nfor family, kind in ((17, 3), (2, 3), (40, 1)):\n"
        "    try: socket.socket(family, kind)\n    except OSError as e: print(e)",
        "read: .",
    ),
    "refused_sockets_without_a_policy": Watched(
        "import socket\nfor family, kind in ((17, 3), (2, 3), (40, 1)):\n"
        "    try: socket.socket(family, kind)\n    except OSError as e: print(e)",
        None,
    ),
    "programs_without_a_policy": Watched(
        _STARTS + "start('echo', 'a'); start('sh', '-c', 'ls / > /dev/null; echo done')", None
    ),
    "calls_that_no_box_has": Watched(
        "import ctypes\nc = ctypes.CDLL(None, use_errno=True)\n"
        "for name, arguments in (('mount', (b'x', b'/tmp', b'tmpfs', 0, None)), ('unshare', (0x10000000,)),\n"
        "                        ('ptrace', (16, 1, 0, 0)), ('setns', (0, 0))):\n"
        "    print(name, getattr(c, name)(*arguments), ctypes.get_errno())",
        "read: .",
    ),
    "subinterpreter": Watched(
        "try:\n    import _xxsubinterpreters as i\n    i.create()\n"
        "except BaseException as e: print(type(e).__name__, e)",
        "read: .",
    ),
    "threads_and_lanes": Watched(
        "import threading\ndef f(): open('out/t', 'w').write('1')\nt = threading.Thread(target=f); t.start(); t.join()",
        "write: ./out",
    ),
    "reads_are_recorded": _on_tree(
        "open('in/a').read(); open('in/a').read(); open('in/deep/b', 'rb').read()", "read: ./in"
    ),
}  # fmt: skip
