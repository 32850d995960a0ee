# SPDX-License-Identifier: MIT
"""`agentbox.client` under the real guard: what it does, what it records, what it raises."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentbox
from agentbox import client
from agentbox.client import redaction
from tests.integration.guest.guarded import Host, Outcome
from tests.integration.guest.web_server import Server, web_server

POLICY = "read: ./data\nwrite: ./out\nexec: echo, sh, cat, sleep\n"
PROGRAM = """\
import json, sys
from agentbox import client as box
told = {}
def attempt(name, function):
    try:
        told[name] = function()
    except Exception as error:
        told[name] = [type(error).__name__, str(error)]
"""


@pytest.fixture(scope="module")
def web() -> Iterator[Server]:
    with web_server() as server:
        yield server


def _told(host: Host, python: str, code: str, policy: str = POLICY, **options: Any) -> tuple[dict[str, Any], Outcome]:
    done = host.run(policy, [python, "-c", f"{PROGRAM}{code}\nprint(json.dumps(told))"], **options)
    assert done.exit_code == 0, done
    # Looking for modules in the working directory is denied where no wall hides it.
    done.records = [record for record in done.records if record.args.get("target") != str(host.project)]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, done


def _effects(done: Outcome) -> dict[str, list[tuple[dict[str, Any], Any]]]:
    found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
    for record in done.records:
        if record.kind == "effect":
            found.setdefault(record.op, []).append((record.args, record.result))
    return found


@pytest.mark.parametrize(
    "call",
    [
        lambda: client.read_text("a"),
        lambda: client.write_text("a", "b"),
        lambda: client.get("http://localhost"),
        lambda: client.run(["true"]),
        client.now,
        client.random,
    ],
    ids=["read_text", "write_text", "get", "run", "now", "random"],
)
def test_outside_a_run_every_function_says_what_to_do(call: Any) -> None:
    with pytest.raises(agentbox.AgentboxError, match=r"agentbox\.client\.\w+\(\) works in a run only.*agentbox run"):
        call()


def test_files_and_programs_are_effects_with_their_results(host: Host, python: str) -> None:
    told, done = _told(
        host,
        python,
        "told['read'] = box.read_text('data/a.txt')\n"
        "told['write'] = box.write_text('out/deep/er/b.txt', 'grüße')\n"
        "told['run'] = box.run(['sh', '-c', 'cat; echo err >&2; exit 3'], stdin='fed')\n"
        "told['now'], told['random'] = box.now(), box.random()",
    )
    assert told["read"] == "hello"
    assert told["write"] == {"bytes": 7}
    assert (host.project / "out/deep/er/b.txt").read_text() == "grüße"
    assert list(told["run"].items()) == [("code", 3), ("stdout", "fed"), ("stderr", "err\n")]
    assert 0 <= told["random"] < 1
    effects = _effects(done)
    assert effects["fs.read_text"] == [({"path": "data/a.txt"}, "hello")]
    assert effects["fs.write_text"][0][1] == {"bytes": 7}
    assert effects["proc.run"][0][1] == told["run"]
    assert effects["clock.now"] == [({}, told["now"])]
    assert effects["rand.random"] == [({}, told["random"])]


def test_what_an_effect_does_inside_is_observed_in_a_lane_of_its_own(host: Host, python: str) -> None:
    _, done = _told(host, python, "box.write_text('out/b.txt', ''), box.run(['echo', 'x'])")
    inside = {record.op: record.lane for record in done.records if record.kind == "observe"}
    assert inside == {"fs.open_write": "main>", "proc.spawn": "main>"}


def test_errors_are_results_too(host: Host, python: str) -> None:
    (host.project / "data/bad.bin").write_bytes(b"\xff\xfe")
    told, done = _told(
        host,
        python,
        "attempt('missing', lambda: box.read_text('data/none'))\n"
        "attempt('directory', lambda: box.read_text('data'))\n"
        "attempt('no text', lambda: box.read_text('data/bad.bin'))\n"
        "attempt('no program', lambda: box.run(['no-such-program']))\n"
        "attempt('slow', lambda: box.run(['sleep', '60'], timeout_seconds=0.1))\n"
        "attempt('secret', lambda: box.read_text('secret.txt'))\n"
        "attempt('etc', lambda: box.write_text('/etc/agentbox-test', ''))\n"
        "attempt('ls', lambda: box.run(['ls', '/']))",
    )
    assert told["missing"] == ["FileNotFoundError", "[Errno 2] No such file or directory: 'data/none'"]
    assert told["directory"] == ["IsADirectoryError", "[Errno 21] Is a directory: 'data'"]
    assert told["no text"] == [
        "UnicodeDecodeError",
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ]
    assert told["no program"] == ["FileNotFoundError", "[Errno 2] No such file or directory: 'no-such-program'"]
    assert told["slow"] == ["TimeoutExpired", "Command '['sleep', '60']' timed out after 0.1 seconds"]
    assert told["secret"] == ["PolicyViolation", f"policy denies read {host.project}/secret.txt"]
    assert told["etc"] == ["PolicyViolation", "policy denies write /etc/agentbox-test"]
    assert told["ls"] == ["PolicyViolation", "policy denies exec ls /"]
    recorded = [result for found in _effects(done).values() for _, result in found]
    assert [result["error"]["type"] for result in recorded].count("PolicyViolation") == 3
    assert len(recorded) == len(told)
    assert [denied["target"] for denied in done.of("deny")] == [
        f"{host.project}/secret.txt",
        "/etc/agentbox-test",
        "ls /",
    ]


def test_wrong_arguments_are_said_and_not_recorded(host: Host, python: str) -> None:
    told, done = _told(
        host,
        python,
        "attempt('path', lambda: box.read_text(5))\n"
        "attempt('text', lambda: box.write_text('out/x', b'bytes'))\n"
        "attempt('words', lambda: box.run('echo x'))\n"
        "attempt('none', lambda: box.run([]))\n"
        "attempt('seconds', lambda: box.run(['echo'], timeout_seconds=0))",
    )
    assert [kind for kind, _ in told.values()] == ["TypeError", "TypeError", "TypeError", "ValueError", "ValueError"]
    assert all(text.startswith("agentbox.client") for _, text in told.values())
    assert not done.records


def test_a_page_is_fetched_with_method_headers_and_body(host: Host, python: str, web: Server) -> None:
    told, done = _told(
        host,
        python,
        f"told['get'] = box.get('{web.url}/a%20b?x=1')\n"
        f"told['post'] = box.get('{web.url}/again', method='POST', body='sent', headers={{'X-Kind': 'k'}})\n"
        f"told['see'] = box.get('{web.url}/see//final', method='POST', body='sent')",
        policy=f"net: 127.0.0.1:{web.port}\n",
    )
    assert list(told["get"]) == ["status", "body", "sha256"]
    assert json.loads(told["get"]["body"]) == {"method": "GET", "path": "/a%20b?x=1", "body": "", "é": "ü"}
    assert json.loads(told["post"]["body"])["method"] == "POST"
    assert json.loads(told["post"]["body"])["body"] == "sent"
    assert json.loads(told["see"]["body"]) == {"method": "GET", "path": "/final", "body": "", "é": "ü"}
    args = [args for args, _ in _effects(done)["net.get"]]
    assert args[0] == {"url": f"{web.url}/a%20b?x=1"}
    assert args[1]["method"] == "POST"
    assert args[1]["headers"] == {"X-Kind": "k"}
    assert len(args[1]["body_sha256"]) == 64


def test_a_redirect_is_asked_of_the_policy_as_the_first_address_is(host: Host, python: str, web: Server) -> None:
    told, done = _told(
        host,
        python,
        f"attempt('port', lambda: box.get('{web.url}/see/http://127.0.0.1:PORT/secret'))\n"
        f"attempt('file', lambda: box.get('{web.url}/see/file:///etc/hostname'))\n"
        f"attempt('around', lambda: box.get('{web.url}/see//see//see//see//see//see//see//see//see//see//see//x'))\n"
        "attempt('directly', lambda: box.get('file:///etc/hostname'))",
        policy=f"net: 127.0.0.1:{web.port}\nnet: localhost\n",
    )
    assert told["port"] == ["PolicyViolation", f"policy denies net 127.0.0.1:{web.other_port}"]
    assert told["file"] == ["PolicyViolation", "policy denies net file:///etc/hostname"]
    assert told["around"] == ["HTTPError", "HTTP Error 302: it redirects more than 10 times"]
    assert told["directly"] == ["PolicyViolation", "policy denies net file:///etc/hostname"]
    assert not web.paths(web.other_port)
    assert len(done.of("deny", "net")) == 3


def test_refusals_of_servers_and_of_the_network_are_errors_of_urllib(host: Host, python: str, web: Server) -> None:
    told, _ = _told(
        host,
        python,
        f"attempt('404', lambda: box.get('{web.url}/status/404'))\n"
        f"attempt('slow', lambda: box.get('{web.url}/slow', timeout_seconds=0.3))\n"
        "attempt('nobody', lambda: box.get('http://127.0.0.1:9/'))\n"
        "attempt('scheme', lambda: box.get('no address'))\n"
        "try: box.get('%s/status/500')\n"
        "except Exception as error: told['body'] = [error.code, 'as you wish' in error.read().decode()]" % web.url,
        policy=f"net: 127.0.0.1:{web.port}\nnet: 127.0.0.1:9\n",
    )
    assert told["404"] == ["HTTPError", "HTTP Error 404: as you wish"]
    assert told["slow"] == [
        "TimeoutError",
        f"agentbox.client.get: no whole answer of 127.0.0.1:{web.port} within 0.3 s",
    ]
    assert told["nobody"] == ["URLError", "<urlopen error [Errno 111] Connection refused>"]
    assert told["scheme"][0] == "PolicyViolation"
    assert told["body"] == [500, True]


def test_no_secret_of_a_request_is_recorded_or_sent_on_to_another_server(host: Host, python: str, web: Server) -> None:
    web.asked.clear()
    told, done = _told(
        host,
        python,
        f"told['page'] = box.get('http://ada:PASSWORD@127.0.0.1:{web.port}/see/http://127.0.0.1:PORT/x?api_key=QUERY',"
        " headers={'Authorization': 'Bearer TOKEN', 'X-Api-Key': 'KEY', 'Accept': 'text/plain'})",
        policy=f"net: 127.0.0.1:{web.port}\nnet: 127.0.0.1:{web.other_port}\n",
    )
    first, second = web.asked
    assert first[3]["Authorization"] == "Bearer TOKEN"
    assert first[3]["X-Api-Key"] == "KEY"
    assert not {"Authorization", "X-Api-Key"} & set(second[3])
    assert second[3]["Accept"] == "text/plain"
    args = [args for args, _ in _effects(done)["net.get"]]
    assert not any(secret in json.dumps(args) for secret in ("PASSWORD", "TOKEN", "KEY'", "QUERY"))
    assert "api_key=***" in args[0]["url"]
    assert told["page"]["status"] == 200


def test_a_path_that_changes_its_mind_is_asked_once(host: Host, python: str) -> None:
    two_faced = (
        "class Path:\n"
        "    asked = 0\n"
        "    def __fspath__(self):\n"
        "        self.asked += 1\n"
        "        return 'data/a.txt' if self.asked == 1 else 'secret.txt'\n"
        "class Text(str):\n"
        "    def __str__(self): return 'data/a.txt'\n"
        "    def __fspath__(self): return 'data/a.txt'\n"
        "    def encode(self, *_): return b'data/a.txt'\n"
    )
    told, done = _told(
        host,
        python,
        f"{two_faced}attempt('path', lambda: box.read_text(Path()))\n"
        "attempt('text', lambda: box.read_text(Text('secret.txt')))\n"
        "class Word(str):\n"
        "    def __str__(self): return 'echo'\n"
        "attempt('word', lambda: box.run([Word('cat'), 'secret.txt']))",
        policy="read: ./data\nexec: echo\n",
    )
    assert told["path"][0] in ("TypeError", "PolicyViolation") or told["path"] == "hello"
    assert told["text"] == ["PolicyViolation", f"policy denies read {host.project}/secret.txt"]
    assert told["word"] == ["PolicyViolation", "policy denies exec cat secret.txt"]
    assert "SECRET" not in done.stdout


def test_nothing_of_the_guard_is_reached_from_the_functions(host: Host, python: str) -> None:
    told, done = _told(
        host,
        python,
        "import agentbox\n"
        "told['names'] = [n for n in dir(box) if n in ('session', 'policy', 'guard', 'cursor', 'effects')]\n"
        "held = [getattr(box, n) for n in box.__all__] + [box.effect.ask, box.effect.happens]\n"
        "told['cells'] = [f.__name__ for f in held if f.__closure__]\n"
        "plain = {'dict', 'function', 'str', 'module', 'list', 'int', 'bool', 'NoneType', 'ModuleSpec', '_Feature',"
        " 'SourceFileLoader', 'builtin_function_or_method'}\n"
        "told['globals'] = sorted({type(v).__name__ for v in vars(box).values()} - plain)\n"
        "agentbox.Policy.allows = lambda *a: True\n"
        "attempt('read', lambda: box.read_text('secret.txt'))\n"
        "import subprocess\n"
        "def walk(*a, **k):\n"
        "    frame, told['frames'] = sys._getframe(), []\n"
        "    while frame is not None:\n"
        "        told['frames'].append(frame.f_code.co_filename)\n"
        "        frame = frame.f_back\n"
        "    raise OSError(1, 'stopped')\n"
        "subprocess.Popen = walk\n"
        "attempt('run', lambda: box.run(['echo']))",
        policy="read: ./data\n",
    )
    assert told["run"][0] == "PermissionError"
    assert told["frames"]
    assert not [name for name in told["frames"] if "/guard/guard/" in name or "/guest/guard/" in name]
    assert told["names"] == told["cells"] == told["globals"] == []
    assert told["read"] == ["PolicyViolation", f"policy denies read {host.project}/secret.txt"]
    assert "SECRET" not in done.stdout


def test_the_functions_are_there_in_an_environment_without_agentbox(host: Host, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    told, _ = _told(
        host,
        str(tmp_path / "venv/bin/python"),
        "import agentbox\n"
        "told['read'] = box.read_text('data/a.txt')\n"
        "told['names'] = [getattr(agentbox, n).__name__ for n in ('PolicyViolation', 'Policy', 'PolicyError',"
        " 'ReplayDivergence', 'CheckpointError', 'TraceTampered')]\n"
        "told['denied'] = issubclass(agentbox.PolicyViolation, PermissionError)",
        policy=f"read: ./data\nread: {tmp_path}/venv\n",
    )
    assert told["read"] == "hello"
    assert told["names"] == [
        *("PolicyViolation", "Policy", "PolicyError", "ReplayDivergence", "CheckpointError", "TraceTampered")
    ]
    assert told["denied"] is True


def test_agentbox_names_its_errors_and_its_policy() -> None:
    assert issubclass(agentbox.PolicyViolation, PermissionError)
    assert agentbox.Policy.__name__ == "Policy"
    for name in ("PolicyError", "ReplayDivergence", "CheckpointError", "TraceTampered"):
        assert issubclass(getattr(agentbox, name), agentbox.AgentboxError)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://h/a?token=x&page=2", "http://h/a?token=***&page=2"),
        ("https://ada:secret@h:8/p", "https://***@h:8/p"),
        ("https://h/cb#access_token=x&state=1", "https://h/cb#access_token=***&state=1"),
        ("http://h/?X-Amz-Signature=x&key=y&monkey=z", "http://h/?X-Amz-Signature=***&key=***&monkey=z"),
        ("http://h/@x?a=b@c", "http://h/@x?a=b@c"),
        ("no address", "no address"),
    ],
)
def test_secrets_of_an_address_are_hidden(address: str, shown: str) -> None:
    assert redaction.url(address) == shown
    assert redaction.url(shown) == shown
