# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Ways around an interpreter's guard, tried where nothing else stands in the way.

Each program prints what it got; the secret must not be there and nothing may lie outside. What only a wall stops is
listed in docs/reference/guard.md and not here.
"""

from __future__ import annotations

import pytest

from tests.adversarial.guard.conftest import unchanged, unheard
from tests.integration.guest.conftest import SECRET
from tests.integration.guest.guarded import Host

POLICY = "read: ./data\nwrite: ./out\nexec: echo\nnet: 127.0.0.1:9\n"
BEFORE = "import gc, io, os, socket, subprocess, sys, threading, types\nS = {secret!r}\n"

READS = {
    "sys_argv_as_the_entry_script": "sys.argv[0] = S; print(open(S).read())",
    "argv_that_makes_the_hook_fail": "sys.argv[0] = 5; print(open(S).read())",
    "fork_exec_below_subprocess": (
        "import _posixsubprocess, inspect\n"
        "r, w = os.pipe()\n"
        "from subprocess import Popen\n"
        "import multiprocessing.util as u\n"
        "pid = u.spawnv_passfds(b'/bin/cat', [b'cat', S.encode()], [1]); os.waitpid(pid, 0)"
    ),
    "another_file_under_an_allowed_name": "print(subprocess.run(['echo', S], executable='/bin/cat', capture_output=True).stdout)",
    "execv_under_an_allowed_name": "os.execv('/bin/cat', ['echo', S])",
    "posix_spawn_under_an_allowed_name": "os.waitpid(os.posix_spawn('/bin/cat', ['echo', S], {}), 0)",
    "own_program_of_an_allowed_name": (
        "open('out/echo', 'w').write('#!/bin/sh\\ncat ' + S); os.chmod('out/echo', 0o755)\n"
        "print(subprocess.run(['out/echo'], capture_output=True).stdout)"
    ),
    "shell_behind_an_allowed_word": "os.system('echo x; cat ' + S)",
    "shell_words_that_do_not_end": 'os.system("cat " + S + " #\'")',
    "hard_link_into_a_grant": "os.link(S, 'out/h'); print(open('out/h').read())",
    "symbolic_link_in_a_grant": "os.symlink(S, 'out/s'); print(open('out/s').read())",
    "two_faced_path": (
        "class P:\n"
        "    n = 0\n"
        "    def __fspath__(self):\n"
        "        self.n += 1; return S if self.n == 1 else 'data/a.txt'\n"
        "print(io.FileIO(P()).read())"
    ),
    "string_that_lies_about_itself": (
        "class T(str):\n"
        "    def __str__(self): return 'data/a.txt'\n"
        "    def rfind(self, *a): return -1\n"
        "    def __eq__(self, o): return True\n"
        "    def __hash__(self): return hash('data/a.txt')\n"
        "print(open(T(S)).read())"
    ),
    "search_path_of_modules": "sys.path.append('/'); sys.path.append(os.path.dirname(S)); print(open(S).read())",
    "directory_descriptor": (
        "os.mkdir('out/a'); os.mkdir('out/a/b'); os.chdir('out/a/b')\n"
        "d = os.open('../../../data', os.O_RDONLY)\n"
        "up = '../' * 20\n"
        "print(os.read(os.open(up + S[1:], os.O_RDONLY, dir_fd=d), 99))"
    ),
    "other_database": "import sqlite3; sqlite3.connect('file:' + S + '?mode=ro', uri=True).execute('select 1'); print('x')",
    "other_database_of_dbm": (
        "import dbm\n"
        "for name in ('_dbm', '_gdbm'):\n"
        "    try: print(__import__(name).open(S, 'r')); print(__import__(name).open(S[:-4], 'r'))\n"
        "    except ImportError: pass"
    ),
    "history_of_readline": "import readline; readline.read_history_file(S); print(readline.get_history_item(1))",
    "names_of_a_directory": "print(os.listdir(os.path.dirname(S)), [e.name for e in os.scandir(os.path.dirname(S))])",
    "subinterpreter": (
        "try: import _xxsubinterpreters as si\n"
        "except ImportError: import _interpreters as si\n"
        "i = si.create(); si.run_string(i, 'print(open(%r).read())' % S)"
    ),
    "subinterpreter_module_made_by_hand": (
        "import importlib.machinery as m, importlib.util as u\n"
        "for n in ('_xxsubinterpreters', '_interpreters'):\n"
        "    for f in (m.BuiltinImporter, m.PathFinder):\n"
        "        try:\n"
        "            spec = f.find_spec(n); si = u.module_from_spec(spec); spec.loader.exec_module(si)\n"
        "            i = si.create(); si.run_string(i, 'print(open(%r).read())' % S)\n"
        "        except (AttributeError, ImportError): pass"
    ),
    "library_by_ctypes": (
        "import ctypes; l = ctypes.CDLL(None); f = l.fopen; f.restype = ctypes.c_void_p\n"
        "b = ctypes.create_string_buffer(99); l.fgets(b, 99, ctypes.c_void_p(f(S.encode(), b'r'))); print(b.value)"
    ),
    "python_without_site": (
        "for o in ('-I', '-S', '-E', '-BIc'):\n"
        "    try: print(subprocess.run([sys.executable, o, *(['-c'] if 'c' not in o else []), 'print(open(%r).read())' % S],"
        " capture_output=True).stdout)\n"
        "    except PermissionError: pass"
    ),
    "python_without_its_environment": (
        "for e in ({}, {**os.environ, 'PYTHONPATH': ''}, {**os.environ, 'AGENTBOX_POLICY': '/dev/null'}):\n"
        "    try: print(subprocess.run([sys.executable, '-c', 'print(open(%r).read())' % S], env=e, capture_output=True).stdout)\n"
        "    except PermissionError: pass"
    ),
    "environment_changed_below_python": (
        "os.unsetenv('PYTHONPATH'); print(subprocess.run([sys.executable, '-c', 'print(open(%r).read())' % S],"
        " capture_output=True).stdout)"
    ),
    "guard_found_by_the_collector": "print([o for o in gc.get_objects() if 'agentbox' in repr(type(o))][0])",
    "guard_found_in_a_frame": (
        "class E(dict):\n"
        "    def items(self):\n"
        "        f = sys._getframe()\n"
        "        while f:\n"
        "            for v in f.f_locals.values():\n"
        "                if hasattr(v, '_answers'): v._answers.read = lambda *a: (True, None, '', None)\n"
        "            f = f.f_back\n"
        "        return super().items()\n"
        "try: os.execve('/bin/true', ['true'], E())\n"
        "except Exception: pass\n"
        "print(open(S).read())"
    ),
    "replaced_classes": (
        "for c in object.__subclasses__():\n"
        "    if 'agentbox' in c.__module__:\n"
        "        for n in ('read', '_read_verdict', 'on_open', 'deny'):\n"
        "            try: setattr(c, n, lambda *a, **k: None)\n"
        "            except (TypeError, AttributeError): pass\n"
        "print(open(S).read())"
    ),
    "own_question_to_the_guard": (
        "r = []\n"
        "try: sys.audit('agentbox', 'open', (S, 0, 0, None), r)\n"
        "except PermissionError: pass\n"
        "print(os.read(r[1], 99))"
    ),
    "module_cache_of_sources": "import linecache, tokenize; print(linecache.getlines(S)); print(tokenize.open(S).read())",
    "native_module_from_a_grant": (
        "import importlib.machinery as m, shutil, glob, _ctypes\n"
        "open('out/x.so', 'wb').write(b'x')\n"
        "l = m.ExtensionFileLoader('x', os.path.abspath('out/x.so')); import importlib.util as u\n"
        "u.module_from_spec(u.spec_from_loader('x', l)); print('loaded')"
    ),
    "deep_recursion": (
        "def f():\n"
        "    try: f()\n"
        "    except RecursionError:\n"
        "        try: print(open(S).read())\n"
        "        except BaseException: pass\n"
        "f()"
    ),
    "path_through_proc": "print(open('/proc/self/root' + S).read())",
    "memory_of_the_process": "f = open('/proc/self/mem', 'rb'); print(f)",
}

CHANGES = {
    "remove": "os.remove(S)",
    "rename": "os.rename(S, 'out/x')",
    "chmod": "os.chmod(S, 0)",
    "utime": "os.utime(S, (1, 1))",
    "truncate": "os.truncate(S, 0)",
    "symlink_outside": "os.symlink('/dev/null', S + '.link')",
    "hard_link_outwards": "open('out/x', 'w').close(); os.link('out/x', S + '.link')",
    "fifo": "os.mkfifo(S + '.fifo')",
    "node": "os.mknod(S + '.node')",
    "directory": "os.mkdir(S + '.d')",
    "database": "import sqlite3; sqlite3.connect(S + '.db').execute('create table t(a)')",
    "socket": "socket.socket(socket.AF_UNIX).bind(S + '.sock')",
    "key_log": "import ssl; c = ssl.create_default_context(); open(S + '.log', 'a')",
    "append": "open(S, 'a').write('x')",
    "descriptor_flags": "os.open(S, os.O_WRONLY | os.O_TRUNC)",
}

SENDS = {
    "datagram": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "message": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, ('127.0.0.1', PORT))",
    "connect": "socket.create_connection(('127.0.0.1', PORT))",
    "connect_ex": "socket.socket().connect_ex(('127.0.0.1', PORT))",
    "below_socket": "import _socket; _socket.socket().connect(('127.0.0.1', PORT))",
    "method_of_the_base": "socket.socket.__base__.connect(socket.socket(), ('127.0.0.1', PORT))",
    "name_then_address": (
        "try: socket.getaddrinfo('127.0.0.1', None)\n"
        "except OSError: pass\n"
        "sys.audit('agentbox', 'getaddrinfo', ('127.0.0.1', PORT), [])\n"
        "socket.create_connection(('127.0.0.1', PORT))"
    ),
    "tuple_with_two_faces": (
        "class A(tuple):\n"
        "    def __getitem__(self, i): return ('127.0.0.1', 9)[i]\n"
        "socket.socket().connect(A(('127.0.0.1', PORT)))"
    ),
    "ipv6_form": "socket.socket(socket.AF_INET6).connect(('::ffff:127.0.0.1', PORT))",
    "server": "s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); print('LISTENS')",
    "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print('LISTENS')",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0); print('LISTENS')",
    "lookup": "socket.gethostbyname('evil.invalid')",
}


@pytest.mark.parametrize("trick", READS)
def test_blocks_reading_by(host: Host, python: str, trick: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    policy = POLICY + (f"exec: {python}\n" if trick.startswith(("python_", "environment_")) else "")
    done = host.run(policy, [python, "-c", BEFORE.format(secret=secret) + READS[trick]])
    assert SECRET not in done.stdout + done.stderr
    assert "secret.txt" not in done.stdout
    assert "loaded" not in done.stdout
    assert done.exit_code >= 0, done.stderr


@pytest.mark.parametrize("trick", CHANGES)
def test_blocks_changing_by(host: Host, python: str, trick: str) -> None:
    secret = host.base / "outside" / "secret.txt"
    with unchanged(secret):
        done = host.run(POLICY, [python, "-c", BEFORE.format(secret=str(secret)) + CHANGES[trick]])
    assert "PermissionError: agentbox: policy denies write" in done.stderr
    assert done.of("deny", "write")


@pytest.mark.parametrize("call", ["os.fchmod(fd, 0o600)", "os.chmod(fd, 0o600)", "os.utime(fd, (1, 1))"])
def test_blocks_changing_what_was_opened_for_reading(host: Host, python: str, call: str) -> None:
    with unchanged(host.project / "data" / "a.txt"):
        done = host.run(POLICY, [python, "-c", BEFORE.format(secret="") + f"fd = os.open('data/a.txt', 0)\n{call}"])
    assert "PermissionError: agentbox: policy denies write" in done.stderr
    own = (
        "fd = os.open('out/own', os.O_CREAT | os.O_RDWR); os.fchmod(fd, 0o600); os.unlink('out/own'); os.fchmod(fd, 0)"
    )
    assert host.run(POLICY, [python, "-c", f"import os; {own}"]).exit_code == 0


@pytest.mark.parametrize("trick", SENDS)
def test_blocks_sending_by(host: Host, python: str, trick: str) -> None:
    with unheard() as port:
        done = host.run(POLICY, [python, "-c", BEFORE.format(secret="") + f"PORT = {port}\n" + SENDS[trick]])
    assert "LISTENS" not in done.stdout
    assert done.of("deny", "net"), done.stderr


def test_blocks_signals_to_what_started_it(host: Host, python: str) -> None:
    text = "import os, subprocess\nfor p in (os.getppid(), -1, 1):\n    try: os.kill(p, 0); print('sent')\n    except PermissionError: pass\np = subprocess.Popen(['echo', 'x']); p.kill(); p.wait()"
    done = host.run(POLICY, [python, "-c", text])
    assert "sent" not in done.stdout
    assert done.exit_code == 0, done.stderr
    assert len(done.of("deny", "kill")) == 3


def test_blocks_a_link_swapped_in_behind_the_check(host: Host, python: str) -> None:
    secret = str(host.base / "outside" / "secret.txt")
    text = (
        "import threading, time\n"
        "def swap():\n"
        "    for i in range(400):\n"
        "        for make in (lambda: os.symlink(S, 'out/k'), lambda: os.remove('out/k'), lambda: open('out/k', 'w').close()):\n"
        "            try: make()\n"
        "            except OSError: pass\n"
        "t = threading.Thread(target=swap); t.start()\n"
        "while t.is_alive():\n"
        "    try: print(open('out/k').read(), end='')\n"
        "    except OSError: pass\n"
    )
    done = host.run(POLICY, [python, "-c", BEFORE.format(secret=secret) + text])
    assert SECRET not in done.stdout


@pytest.mark.parametrize(
    "name", [".git/hooks/post-checkout", "sub/.git/config", ".envrc", ".vscode/tasks.json", "conftest.py"]
)
def test_blocks_planting_what_runs_later(host: Host, python: str, name: str) -> None:
    text = f"import os; os.makedirs(os.path.dirname('{name}') or '.', exist_ok=True); open('{name}', 'w')"
    done = host.run("write: .\nprotect: on\n", [python, "-c", text])
    assert "agentbox: policy denies write" in done.stderr
    assert not (host.project / name).exists()
