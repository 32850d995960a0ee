# SPDX-License-Identifier: MIT
"""The ways around the old runtime's guards to files, sockets, processes and the trace: the box stands behind them,
with a guard and without one."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.adversarial.escape.canaries import Canaries
from tests.policy_run import AGENTBOX, Project, has_program

pytestmark = pytest.mark.linux

# S is a file outside the policy, D its directory, PORT and UDP listeners of the host, U a named socket.
PYTHON = {
    "plain_open": "print(open(S).read())",
    "os_open": "print(os.read(os.open(S, os.O_RDONLY), 99))",
    "entry_script_is_renamed": "sys.argv[0] = S; print(open(S).read())",
    "entry_script_is_no_text": "sys.argv[0] = 5; print(open(S).read())",
    "hard_link_inwards": "os.link(S, 'out/h'); print(open('out/h').read())",
    "hard_link_outwards": "open('out/w', 'w').write('x'); os.link('out/w', D + '/planted')",
    "symbolic_link": "os.symlink(S, 'out/l'); print(open('out/l').read())",
    "two_faced_path": (
        "import io\n"
        "class P:\n"
        "    n = 0\n"
        "    def __fspath__(self): P.n += 1; return 'data/notes.txt' if P.n == 1 else S\n"
        "print(io.FileIO(P()).read())"
    ),
    "module_path_is_widened": "sys.path.append('/'); print(open(S).read())",
    "database_outside": "import sqlite3; sqlite3.connect(D + '/planted.db').execute('create table t (a)')",
    "link_outside": "os.symlink('/', D + '/planted')",
    "pipe_outside": "os.mkfifo(D + '/planted')",
    "mode_outside": "os.chmod(S, 0o600); os.utime(S, (1, 1)); assert os.stat(S).st_mtime != 1",
    "list_outside": "print(os.listdir(D), os.stat(S), 'SECRET')",
    "other_spellings": (
        "for p in ('/proc/self/root' + S, '/proc/1/root' + S, '/proc/self/cwd/../../../../..' + S, '//' + S):\n"
        "    try: print(open(p).read())\n"
        "    except OSError: pass"
    ),
    "readline_opens_without_an_event": (
        "import readline; readline.read_history_file(S); print(readline.get_history_item(1))"
    ),
    "link_is_swapped_while_it_is_opened": (
        "import threading\n"
        "def swap():\n"
        "    while True:\n"
        "        for t in ('data/notes.txt', S):\n"
        "            os.symlink(os.path.abspath(t), 'out/n'); os.replace('out/n', 'out/k')\n"
        "threading.Thread(target=swap, daemon=True).start()\n"
        "for _ in range(2000):\n"
        "    try: t = open('out/k').read()\n"
        "    except OSError: continue\n"
        "    if 'CANARY' in t: print(t); break"
    ),
    "module_outside_is_loaded": (
        "import importlib.machinery as m; loader = m.SourceFileLoader('x', S)\n"
        "print(loader.get_data(S)); loader.load_module()"
    ),
    "database_outside_is_read": (
        "import sqlite3\n"
        "try: sqlite3.connect(f'file:{S}?mode=ro', uri=True).execute('select 1 from sqlite_master')\n"
        "except sqlite3.DatabaseError as error: print('GAINED' if 'not a database' in str(error) else error)"
    ),
    "passwords": "import spwd; print('GAINED' if spwd.getspall() else '')",
    "people_of_the_host": "import pwd; print('GAINED' if len(pwd.getpwall()) > 4 else '')",
    "lookup_of_a_name": "import socket; print('GAINED', socket.gethostbyname('example.com'))",
    "raw_sockets": "import socket; socket.socket(2, 3, 1); print('GAINED')",
    "packet_sockets": "import socket; socket.socket(17, 3, 0); print('GAINED')",
    "server_that_the_host_could_reach": (
        "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', UDP)); s.listen(); s.settimeout(0.2)\n"
        "try: s.accept(); print('GAINED')\n"
        "except OSError: pass\n"
        "print([n for _, n in socket.if_nameindex() if n != 'lo' and print('GAINED')])"
    ),
    "write_outside": "open(S, 'a').write('x')",
    "udp": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', UDP))",
    "udp_message": "import socket; socket.socket(2, 2).sendmsg([b'x'], [], 0, ('127.0.0.1', UDP))",
    "tcp": "import socket; socket.create_connection(('127.0.0.1', PORT), 2)",
    "tcp_without_the_class": "import _socket; s = _socket.socket(2, 1); s.connect_ex(('127.0.0.1', PORT))",
    "abstract_socket": "import socket; socket.socket(1, 1).connect('\\0' + ABSTRACT)",
    "named_socket": "import socket; socket.socket(1, 1).connect(U)",
    "signal_to_the_runner": "os.kill(VICTIM, 19)",
    "other_interpreter_without_a_guard": (
        "import _xxsubinterpreters as i; os.unsetenv('AGENTBOX_POLICY');"
        " i.run_string(i.create(), 'print(open(%r).read())' % S)"
    ),
    "foreign_functions": (
        "import ctypes; c = ctypes.CDLL(None); f = c.open(S.encode(), 0); b = ctypes.create_string_buffer(99);"
        " c.read(f, b, 99); print(b.value)"
    ),
    "own_namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0; print('CANARY')",
    "guard_s_state": (
        "import gc\n"
        "for o in gc.get_objects():\n"
        "    try:\n"
        "        if isinstance(o, dict) and 'reads' in o: o['reads'].append('/')\n"
        "    except Exception: pass\n"
        "print(open(S).read())"
    ),
}  # fmt: skip
NODE = {
    "read": "console.log(fs.readFileSync(S, 'utf8'))",
    "link": "fs.linkSync(S, 'out/h'); console.log(fs.readFileSync('out/h', 'utf8'))",
    "binding": "const b = process.binding('fs'); console.log(b.open(S, 0, 0o666, undefined, {}))",
    "url": "console.log(fs.readFileSync(new URL('file://' + S), 'utf8'))",
    "promises": "require('fs/promises').readFile(S, 'utf8').then(console.log, () => 0)",
    "import": "import('node:fs').then(m => console.log(m.readFileSync(S, 'utf8'))).catch(() => 0)",
    "builtin": "console.log(process.getBuiltinModule('fs').readFileSync(S, 'utf8'))",
    "load": "console.log(require('module')._load('fs').readFileSync(S, 'utf8'))",
    "spawn_sync_binding": (
        "console.log(process.binding('spawn_sync').spawn({file: '/bin/cat', args: ['echo', S],"
        " stdio: [{type: 'inherit'}, {type: 'inherit', fd: 1}, {type: 'inherit', fd: 2}]}))"
    ),
    "shell": "require('child_process').spawnSync('echo', ['; cat ' + S], {shell: true, stdio: 'inherit'})",
    "exec": "console.log(String(require('child_process').execSync('echo x; cat ' + S)))",
    "child": (
        "new (require('child_process').ChildProcess)().spawn({file: '/bin/cat', args: ['echo', S], envPairs: [],"
        " stdio: 'inherit'})"
    ),
    "datagram": "require('dgram').createSocket('udp4').send('x', UDP, '127.0.0.1', () => process.exit())",
    "connect": "require('net').connect(PORT, '127.0.0.1').on('error', () => 0)",
    "symlink": "fs.symlinkSync('/', D + '/planted')",
    "chmod": "fs.chmodSync(S, 0o600)",
    "readdir": "console.log(fs.readdirSync(D), 'CANARY')",
    "lookup": "require('dns').lookup('example.com', (e, a) => a && console.log('GAINED', a))",
    "resolver": "require('dns').resolve4('example.com', (e, a) => a && console.log('GAINED', a))",
    "native_module": (
        "try { process.dlopen({exports: {}}, S) }"
        " catch (e) { if (/invalid ELF/.test(e.message)) console.log('GAINED') }"
    ),
    "stat": "console.log(fs.statSync(S), 'GAINED')",
    "worker": (
        "new (require('worker_threads').Worker)("
        "`console.log(require('fs').readFileSync(${JSON.stringify(S)}, 'utf8'))`,"
        " {eval: true, env: {}, execArgv: []}).on('error', () => 0)"
    ),
}  # fmt: skip


def _known(canary: Canaries) -> dict[str, object]:
    known = canary.known
    return {
        "S": known["canary"],
        "D": known["canary_directory"],
        "PORT": known["tcp_port"],
        "UDP": known["udp_port"],
        "U": known["unix_path"],
        "ABSTRACT": known["abstract"],
        "VICTIM": known["victim"],
    }


def _gained_nothing(project: Project, canary: Canaries, text: str) -> None:
    assert canary.secret not in text, text
    assert "GAINED" not in text, text
    assert canary.touched() == []
    assert os.stat(canary.directory / "secret.txt").st_mode & 0o777 == 0o666
    assert project.verdict()[0] == 0


@pytest.mark.parametrize("flags", [(), ("-I", "-S", "-E")], ids=["guarded", "isolated"])
@pytest.mark.parametrize("name", PYTHON)
def test_python_gains_nothing(project: Project, canary: Canaries, name: str, flags: tuple[str, ...]) -> None:
    told = "".join(f"{key} = {value!r}\n" for key, value in _known(canary).items())
    code = f"import os, sys\n{told}try:\n" + "\n".join(f"    {line}" for line in PYTHON[name].split("\n"))
    done = project.run("/usr/bin/python3", *flags, "-c", f"{code}\nexcept BaseException as error: print(error)\n")
    _gained_nothing(project, canary, done.text)


@pytest.mark.parametrize("name", NODE)
def test_node_gains_nothing(project: Project, canary: Canaries, name: str) -> None:
    if not has_program("node"):
        pytest.skip("there is no node")
    told = "".join(f"const {key} = {json.dumps(value)};\n" for key, value in _known(canary).items())
    code = f"const fs = require('fs');\n{told}try {{ {NODE[name]} }} catch (error) {{ console.log(error.message); }}"
    done = project.run("node", "-e", code)
    _gained_nothing(project, canary, done.text)


def test_the_same_reads_succeed_where_a_rule_grants_them(project: Project, canary: Canaries) -> None:
    project.policy(f"read: {canary.directory}")
    done = project.run("/usr/bin/python3", "-I", "-c", f"print(open({str(canary.directory / 'secret.txt')!r}).read())")
    assert canary.secret in done.text


def test_only_what_is_really_below_a_grant_is_read(project: Project) -> None:
    project.file("data-secret/a", "SECRET")
    project.file("DATA/a", "SECRET")
    project.file("secret", "SECRET")
    (project.directory / "data" / "link").symlink_to("../secret")
    spellings = ["data-secret/a", "DATA/a", "data/../secret", "data/link", "./data//../secret", "/proc/self/cwd/secret"]
    code = (
        f"import os\nfor p in {spellings!r} + [os.fsencode('secret')]:\n"
        "    for act in (lambda: open(p).read(), lambda: os.read(os.open(p, 0), 9)):\n"
        "        try: print(act())\n"
        "        except OSError: pass\n"
        "d = os.open('data', os.O_RDONLY)\n"
        "try: print(os.read(os.open('../secret', 0, dir_fd=d), 9))\n"
        "except OSError: pass\n"
        "print(open('data/notes.txt').read())"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert "SECRET" not in done.text, done
    assert done.text.startswith("notes")


def test_the_environment_holds_only_what_rules_pass(project: Project) -> None:
    project.policy("env: ALLOWED_*", "exec: echo")
    given = {"ALLOWED_ONE": "1", "AWS_SECRET_ACCESS_KEY": "CANARY", "GITHUB_TOKEN": "CANARY", "LD_PRELOAD": ""}
    code = (
        "import os\nprint(dict(os.environ))\nfor p in os.listdir('/proc'):\n"
        "    try: print(open(f'/proc/{p}/environ').read())\n"
        "    except OSError: pass\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code, environment=given)
    assert "ALLOWED_ONE" in done.text
    assert "CANARY" not in done.text


def test_native_code_that_the_box_made_gains_nothing(project: Project, canary: Canaries) -> None:
    if not has_program("gcc"):
        pytest.skip("there is no gcc")
    source = (
        '#include <stdio.h>\n__attribute__((constructor)) void f(void) { char t[99] = ""; FILE *s = fopen("%s", "r");'
        ' if (s) { fgets(t, 99, s); puts(t); puts("GAINED"); } else puts("native code ran"); fflush(stdout); }\n'
    )
    project.file("out/evil.c", source % _known(canary)["S"])
    project.policy("read: ./data", "write: ./out", "exec: gcc, as, ld")
    built = project.run("gcc", "-shared", "-fPIC", "-o", "out/evil.so", "out/evil.c")
    assert built.exit_code == 0, built
    for code in (
        "import _ctypes; _ctypes.dlopen('out/evil.so', 2)",
        "import sys; sys.path.insert(0, 'out'); import evil",
    ):
        done = project.run("/usr/bin/python3", "-I", "-c", code)
        assert "native code ran" in done.text, done
        _gained_nothing(project, canary, done.text)


def test_forged_frames_write_no_record_of_the_host(project: Project) -> None:
    code = (
        "import json, socket, struct\n"
        "def say(**fields):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect('/run/agentbox/channel')\n"
        "    text = json.dumps({'id': 1, 'ack': True, **fields}).encode()\n"
        "    s.sendall(struct.pack('>I', len(text)) + text); s.settimeout(3)\n"
        "    try: return s.recv(999)\n"
        "    except OSError: return b''\n"
        "for kind, op in (('meta', 'run.end'), ('meta', 'trace.seal'), ('meta', 'run.start'), ('deny', 'x' * 9999)):\n"
        "    say(kind=kind, op=op, args={'returncode': 0, 'count': 1})\n"
        "say(kind='effect', op='fs.read_text', args={'path': 'forged'}, origin='kernel', i=0, sha='0' * 64)\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert [one["op"] for one in done.records if one["kind"] == "meta"] == ["run.start", "run.end", "trace.seal"], done
    assert {one["origin"] for one in done.records if one["args"].get("path") == "forged"} <= {"guest"}
    assert project.verdict()[0] == 0


ATTACKS_ON_THE_TRACE = (
    "import os, glob\n"
    "names = ['trace.jsonl', *glob.glob('.agentbox/runs/*/trace.jsonl'), 'agentbox.policy']\n"
    "for p in names:\n"
    "    for act in (lambda: open(p, 'a').write('x'), lambda: os.truncate(p, 0), lambda: os.rename(p, p + '.old'),\n"
    "                lambda: os.unlink(p), lambda: os.symlink('/dev/null', p), lambda: os.link(p, 'mine'),\n"
    "                lambda: os.chmod(p, 0), lambda: os.rename('.agentbox', 'elsewhere')):\n"
    "        try: act(); print('DID', p)\n"
    "        except OSError: pass\n"
)


def test_a_command_that_may_write_everywhere_cannot_touch_its_policy_or_its_trace(project: Project) -> None:
    project.policy("write: .")
    policy = (project.directory / "agentbox.policy").read_text()
    for _ in range(2):
        done = project.run("/usr/bin/python3", "-I", "-c", ATTACKS_ON_THE_TRACE)
        assert done.exit_code == 0, done
        assert project.verdict()[0] == 0
        assert (project.directory / "trace.jsonl").resolve() == max(
            project.traces(), key=lambda path: path.stat().st_mtime_ns
        )
        assert all(project.verdict(trace)[0] == 0 for trace in project.traces())
    assert (project.directory / "agentbox.policy").read_text() == policy


def test_node_that_may_write_everywhere_cannot_touch_its_trace(project: Project) -> None:
    if not has_program("node"):
        pytest.skip("there is no node")
    project.policy("write: .")
    code = (
        "const fs = require('fs');\n"
        "for (const act of [() => fs.writeFileSync('trace.jsonl', ''), () => fs.appendFileSync('trace.jsonl', 'x'),\n"
        "  () => fs.truncateSync('trace.jsonl'), () => fs.renameSync('.agentbox', 'x'), () => fs.rmSync('.agentbox',\n"
        "  {recursive: true}), () => fs.writeFileSync('agentbox.policy', 'read: /')]) {\n"
        "  try { act(); console.log('DID', String(act)); } catch (error) { }\n"
        "}"
    )
    done = project.run("node", "-e", code)
    assert "DID" not in done.text, done
    assert project.verdict()[0] == 0


def test_a_link_to_an_older_trace_is_put_right_and_said(project: Project) -> None:
    project.policy("write: .")
    project.run("true")
    old = project.traces()[0].relative_to(project.directory)
    code = f"import os; os.unlink('trace.jsonl'); os.symlink({str(old)!r}, 'trace.jsonl')"
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert not (project.directory / "trace.jsonl").samefile(project.directory / old)
    assert "was changed while the command ran" in done.stderr


def test_a_trace_named_below_a_write_grant_is_read_only_for_the_command(project: Project) -> None:
    project.policy("write: ./out")
    (project.directory / "out").mkdir()
    code = (
        "import os\n"
        "for act in (lambda: open('out/t.jsonl', 'a'), lambda: os.unlink('out/t.jsonl')):\n"
        "    try: act(); print('DID')\n"
        "    except OSError: pass"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code, options=["-t", "out/t.jsonl"])
    assert "DID" not in done.text, done
    assert project.verdict("out/t.jsonl")[0] == 0


def test_the_key_that_signs_is_hidden_below_every_grant(project: Project) -> None:
    project.policy(f"read: {project.state.parent}", "exec: ls")
    done = project.run("sh", "-c", f"ls {project.state}; ls {project.state}/trace")
    assert "ledger" not in done.text
    assert ".pem" not in done.text


def test_runs_side_by_side_each_have_a_whole_trace(project: Project) -> None:
    running = [
        subprocess.Popen(
            [*AGENTBOX, "run", "-q", "--", "sh", "-c", "echo x; echo y"],
            cwd=project.directory,
            env=project.environ(),
            stdout=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    assert [one.wait(120) for one in running] == [0] * 4
    assert len(project.traces()) == 4
    assert [project.verdict(trace)[0] for trace in project.traces()] == [0] * 4


def test_protected_files_that_exist_are_not_written(project: Project) -> None:
    project.file(".git/hooks/pre-commit", "x\n", 0o755)
    project.file("vendor/x/.git/hooks/pre-push", "x\n", 0o755)
    project.file(".envrc", "x\n")
    project.policy("write: .", "protect: on")
    code = (
        "for p in ('.git/hooks/pre-commit', 'vendor/x/.git/hooks/pre-push', '.envrc'):\n"
        "    try: open(p, 'w').write('evil'); print('WROTE', p)\n"
        "    except OSError: pass\n"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code)
    assert "WROTE" not in done.text, done


@pytest.mark.parametrize(
    ("witness", "seen"), [("off", set()), ("exec", {"proc.exec"}), ("all", {"proc.exec", "fs.open_read"})]
)
def test_the_kernel_s_witness_sees_what_it_is_asked_to(project: Project, witness: str, seen: set[str]) -> None:
    code = (
        "import os\n"
        "for act in (lambda: open('/no/such/file'), lambda: os.execv('/bin/ls', ['ls'])):\n"
        "    try: act()\n"
        "    except OSError: pass"
    )
    done = project.run("/usr/bin/python3", "-I", "-c", code, options=["--witness", witness])
    ops = {one["op"] for one in done.records if one["origin"] == "kernel" and one["kind"] == "observe"}
    assert ops & {"proc.exec", "fs.open_read"} == seen
    assert done.denials(), "denials are recorded whatever the witness"
    if witness == "all":
        assert "/no/such/file" in {one["args"].get("path") for one in done.records}
