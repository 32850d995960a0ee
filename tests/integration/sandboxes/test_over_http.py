# SPDX-License-Identifier: MIT
"""What callers may do with sandboxes behind a server."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import socket
import tarfile
from typing import Any

import httpx
import pytest

from tests.integration.sandboxes.conftest import KEYS, Box, keeper_pid, made, rss_bytes
from tests.running_server import RunningServer


def events(answer: httpx.Response) -> list[tuple[str, dict[str, Any], str]]:
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"]), lines["id"]))
    return found


def test_sandbox_is_made_listed_used_and_deleted(alice: httpx.Client) -> None:
    box = made(alice, memory_mb=256, pids=64, env={"COLOUR": "blue"}, idle_timeout_seconds=600)
    told = box.ask("GET").json()
    assert (told["status"], told["backend"], told["limits"]["memory_mb"]) == ("running", "jail", 256)
    assert told["enforcement"]["filesystem"] == "kernel"
    assert told in alice.get("/v1/sandboxes").json()["sandboxes"]
    assert box.exec("echo $COLOUR")["stdout"] == "blue\n"
    assert box.ask("DELETE").status_code == 204
    assert box.ask("GET").status_code == 404
    assert box.id not in alice.get("/v1/sandboxes").text


def test_exec_answers_with_both_streams_and_the_exit_code(box: Box) -> None:
    found = box.exec("echo out; echo err >&2; exit 3")
    assert (found["stdout"], found["stderr"], found["exit_code"], found["running"]) == ("out\n", "err\n", 3, False)
    assert box.exec(["printf", "\\377"])["stdout_b64"] == base64.b64encode(b"\xff").decode()
    assert box.exec("cat", stdin="given")["stdout"] == "given"
    assert box.exec("cat", stdin_b64="AAE=")["stdout_bytes"] == 2
    assert box.exec("pwd", cwd="/tmp")["stdout"] == "/tmp\n"
    assert box.exec("echo $A", env={"A": "1"})["stdout"] == "1\n"
    assert box.exec("sleep 60", timeout_seconds=0.2)["timed_out"] is True
    assert box.exec("tty", terminal=[24, 80])["exit_code"] == 0


def test_large_output_keeps_its_ends_in_the_answer_and_all_in_the_spool(box: Box) -> None:
    found = box.exec("seq 400000")
    assert found["stdout_truncated"] is True
    assert found["stdout"].startswith("1\n2\n")
    assert found["stdout"].endswith("\n400000\n")
    whole, offset = b"", 0
    while offset < found["stdout_bytes"]:
        piece = box.ask("GET", f"/commands/{found['id']}/output", params={"offset": offset, "limit": 1 << 20})
        assert piece.headers["x-agentbox-offset"] == str(offset)
        whole += piece.content
        offset += len(piece.content)
    assert whole == b"".join(b"%d\n" % number for number in range(1, 400001))


def test_output_is_told_as_events_and_taken_up_where_it_was_lost(box: Box) -> None:
    command = box.start("echo 1 é; echo two >&2; sleep 0.3; printf '\\377'")
    path, accept = f"/commands/{command}/output", {"Accept": "text/event-stream"}
    told = events(box.ask("GET", path, headers=accept))
    assert [name for name, _, _ in told][-1] == "exit"
    assert "".join(data.get("text", "") for name, data, _ in told if name == "stdout") == "1 é\n"
    assert {"seq": 3, "offset": 5, "b64": "/w=="} in [data for _, data, _ in told]
    again = events(box.ask("GET", path, headers=accept | {"Last-Event-ID": "5-0"}))
    assert sorted((name, data["offset"]) for name, data, _ in again[:-1]) == [("stderr", 0), ("stdout", 5)]


def test_command_takes_input_signals_and_an_end(box: Box) -> None:
    command = box.start("while read line; do echo got $line; done; echo end", open_stdin=True)
    assert box.ask("POST", f"/commands/{command}/stdin", content=b"a\n").status_code == 204
    more = box.ask("GET", f"/commands/{command}/output", params={"wait_seconds": 20})
    assert more.content == b"got a\n"
    assert box.ask("POST", f"/commands/{command}/stdin", params={"close": "true"}, content=b"b\n").status_code == 204
    ended = box.ask("GET", f"/commands/{command}", params={"wait_seconds": 20}).json()
    assert (ended["running"], ended["exit_code"], ended["stdout_bytes"]) == (False, 0, 16)
    assert box.ask("POST", f"/commands/{command}/stdin", content=b"c").status_code == 409

    command = box.start("trap 'echo int; exit 5' INT; sleep 60 & wait")
    box.ask("GET", f"/commands/{command}/output", params={"wait_seconds": 0.1})
    assert box.ask("POST", f"/commands/{command}/signal", json={"signal": "SIGTERM"}).status_code == 204
    assert box.ask("GET", f"/commands/{command}", params={"wait_seconds": 20}).json()["signal"] == 15
    assert box.ask("POST", f"/commands/{command}/kill").json() == {"survivors": 0}


def test_files_are_written_read_listed_moved_and_removed(box: Box) -> None:
    box.write("f/one.txt", b"hello")
    assert box.read("f/one.txt") == b"hello"
    assert box.ask("GET", "/files", params={"path": "f/one.txt", "offset": 1, "length": 3}).content == b"ell"
    assert box.ask("PUT", "/files", params={"path": "f/one.txt", "how": "new"}, content=b"").json()["errno"] == "EEXIST"
    assert box.ask("POST", "/files/directory", json={"path": "f/d/e", "mode": "0700"}).status_code == 204
    assert box.ask("POST", "/files/move", json={"path": "f/one.txt", "to": "f/d/e/two"}).status_code == 204
    listed = box.ask("GET", "/files/list", params={"path": "f", "depth": -1}).json()["entries"]
    assert [(one["path"], one["kind"], one["mode"]) for one in listed] == [
        ("/work/f/d", "directory", 0o755),
        ("/work/f/d/e", "directory", 0o700),
        ("/work/f/d/e/two", "file", 0o644),
    ]
    assert box.ask("GET", "/files/info", params={"path": "f/d/e/two"}).json()["size"] == 5
    assert box.ask("DELETE", "/files", params={"path": "f"}).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "status", "errno"),
    [
        ("GET", "nosuch", 404, "ENOENT"),
        ("GET", "/tmp", 409, "EISDIR"),
        ("DELETE", "/etc/passwd", 403, "EROFS"),
        ("GET", "/etc/passwd/x", 409, "ENOTDIR"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_errno(
    box: Box, method: str, path: str, status: int, errno: str
) -> None:
    answer = box.ask(method, "/files", params={"path": path})
    assert (answer.status_code, answer.json()["code"], answer.json()["errno"]) == (status, "file_error", errno)


def test_directory_that_is_too_large_is_not_listed(box: Box) -> None:
    box.exec("mkdir many; cd many; touch $(seq 50)")
    assert len(box.ask("GET", "/files/list", params={"path": "many", "max_entries": 50}).json()["entries"]) == 50
    refused = box.ask("GET", "/files/list", params={"path": "many", "max_entries": 49})
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_entries")
    assert box.exec("ls many | wc -l")["stdout"] == "50\n"


def test_names_that_are_not_utf_8_can_be_listed_and_read(box: Box) -> None:
    box.exec(["bash", "-c", "mkdir odd; printf x > odd/$'\\377'"])
    entry = box.ask("GET", "/files/list", params={"path": "odd"}).json()["entries"][0]
    assert base64.b64decode(entry["path_b64"]) == b"/work/odd/\xff"
    assert box.client.get(f"{box.path}/files?path=odd/%FF").content == b"x"


def test_directories_go_in_and_out_as_tar(box: Box) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("a/run.sh")
        member.size, member.mode = 4, 0o755
        archive.addfile(member, io.BytesIO(b"exit"))
    answer = box.ask("PUT", "/files/archive", params={"path": "in"}, content=packed.getvalue())
    assert answer.status_code == 204, answer.text
    back = box.ask("GET", "/files/archive", params={"path": "in"})
    with tarfile.open(fileobj=io.BytesIO(back.content)) as archive:
        found = {member.name.removeprefix("./"): member.mode for member in archive if member.isreg()}
    assert found == {"a/run.sh": 0o755}
    assert box.ask("PUT", "/files/archive", params={"path": "in"}, content=b"no tar" * 200).status_code == 400


def test_large_file_passes_in_memory_that_does_not_grow_with_it(kept_server: RunningServer, box: Box) -> None:
    size = 48 << 20
    pids = (kept_server.pid, keeper_pid(kept_server.state_dir))
    before = [rss_bytes(pid) for pid in pids]
    piece = b"0123456789abcdef" * 4096
    box.ask("PUT", "/files", params={"path": "big"}, content=(piece for _ in range(size // len(piece))))
    got = 0
    with box.client.stream("GET", f"{box.path}/files", params={"path": "big"}) as answer:
        for part in answer.iter_bytes():
            got += len(part)
    assert got == size
    assert all(rss_bytes(pid) - was < size // 3 for pid, was in zip(pids, before, strict=True))


def test_large_file_of_known_length_is_the_users_and_replaces_what_was_there(box: Box) -> None:
    content = bytes(range(256)) * (20 << 12)
    box.exec("mkdir real; ln -s real link; echo old > real/big; chmod 600 real/big")
    for path in ("plain/big", "link/big", "/root/plain/big", "/tmp/big"):
        box.write(path, content)
        found = box.exec(["sh", "-c", f"cd /work; sha256sum < {path}; stat -c '%U %s %a' {path}; rm -f {path}"])[
            "stdout"
        ]
        mode = "600" if path == "link/big" else "644"
        assert found == f"{hashlib.sha256(content).hexdigest()}  -\nagent {len(content)} {mode}\n"


def test_large_file_that_has_no_room_leaves_the_one_before_it(alice: httpx.Client) -> None:
    box = made(alice, disk_mb=24)
    box.write("f", b"before")
    refused = box.ask("PUT", "/files", params={"path": "f"}, content=os.urandom(40 << 20))
    assert (refused.status_code, refused.json()["errno"]) in {(507, "EDQUOT"), (507, "ENOSPC")}
    assert box.exec("ls -A; cat f")["stdout"] == "f\nbefore"
    assert box.ask("DELETE").status_code == 204


def test_large_file_whose_sender_goes_away_was_never_there(kept_server: RunningServer, box: Box) -> None:
    target = f"{box.path}/files?path=half"
    head = f"PUT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {40 << 20}\r\n"
    head += f"Authorization: Bearer {KEYS['alice']}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(kept_server.url.rpartition(":")[2]))) as connection:
        connection.sendall(head.encode() + bytes(20 << 20))
    assert box.exec("ls half; ls -A | grep agentbox-")["stdout"] == ""
    box.write("half", b"x")
    assert box.read("half") == b"x"


def test_upload_over_the_limit_is_refused_and_the_file_is_not_there(box: Box) -> None:
    declared = box.ask("PUT", "/files", params={"path": "huge"}, content=bytes(51 << 20))
    assert (declared.status_code, declared.json()["code"]) == (413, "body_too_large")
    streamed = box.ask("PUT", "/files", params={"path": "huge"}, content=(bytes(1 << 20) for _ in range(52)))
    assert streamed.status_code == 413
    assert box.ask("GET", "/files/info", params={"path": "huge"}).status_code == 404


def test_client_that_goes_away_ends_its_wait_and_not_the_command(box: Box) -> None:
    with pytest.raises(httpx.TimeoutException):
        box.client.post(f"{box.path}/exec", json={"command": "sleep 1.5; echo done > finished"}, timeout=0.5)
    command = box.ask("GET", "/commands").json()["commands"][-1]
    ended = box.ask("GET", f"/commands/{command['id']}", params={"wait_seconds": 20}).json()
    assert ended["exit_code"] == 0
    assert box.read("finished") == b"done\n"


def test_snapshot_restore_and_fork(alice: httpx.Client, box: Box) -> None:
    box.write("state", b"one")
    taken = box.ask("POST", "/snapshots", json={"name": "first"}).json()
    box.write("state", b"two")
    forks = box.ask("POST", "/fork", json={"count": 2}).json()["sandboxes"]
    copies = [Box(alice, fork["id"]) for fork in forks]
    assert [copy.read("state") for copy in copies] == [b"two", b"two"]
    copies[0].write("state", b"three")
    assert (box.read("state"), copies[1].read("state")) == (b"two", b"two")
    assert box.ask("POST", "/restore", json={"snapshot_id": taken["snapshot_id"]}).status_code == 200
    assert box.read("state") == b"one"
    of_it = made(alice, snapshot_id=taken["snapshot_id"])
    assert of_it.read("state") == b"one"
    for one in (*copies, of_it):
        assert one.ask("DELETE").status_code == 204
    assert taken in box.ask("GET", "/snapshots").json()["snapshots"]
    assert box.ask("DELETE", f"/snapshots/{taken['snapshot_id']}").status_code == 204
    assert box.ask("POST", "/restore", json={"snapshot_id": taken["snapshot_id"]}).status_code == 404


def test_snapshots_and_restores_answer_with_events_where_these_are_asked_for(box: Box) -> None:
    accept = {"Accept": "text/event-stream"}
    answer = box.ask("POST", "/snapshots", json={}, headers=accept)
    *_, last = answer.text.strip().split("\n\n")
    taken = json.loads(last.removeprefix("event: done\ndata: "))
    assert (answer.status_code, answer.headers["content-type"]) == (201, "text/event-stream")
    assert taken in box.ask("GET", "/snapshots").json()["snapshots"]
    restored = box.ask("POST", "/restore", json={"snapshot_id": taken["snapshot_id"]}, headers=accept)
    assert f'"id":"{box.id}"' in restored.text
    box.ask("DELETE", f"/snapshots/{taken['snapshot_id']}")
    assert box.ask("POST", "/restore", json={"snapshot_id": taken["snapshot_id"]}, headers=accept).status_code == 404


def test_paused_sandbox_does_nothing_until_it_is_resumed(box: Box) -> None:
    command = box.start("sleep 0.5; echo on")
    assert box.ask("POST", "/pause").json()["status"] == "paused"
    assert box.ask("POST", "/exec", json={"command": "true"}).json()["code"] == "sandbox_paused"
    assert box.ask("GET", f"/commands/{command}").json()["running"] is True
    assert box.ask("POST", "/resume").json()["status"] == "running"
    assert box.ask("GET", f"/commands/{command}", params={"wait_seconds": 20}).json()["exit_code"] == 0


def test_tools_answer_as_in_a_process(box: Box) -> None:
    def call(name: str, **arguments: Any) -> dict[str, Any]:
        found: dict[str, Any] = box.ask("POST", f"/tools/{name}", json=arguments).json()
        return found

    assert call("shell_exec", command="echo hi")["text"] == "exit=0\noutput:\nhi\n"
    assert call("shell_exec", command="sleep 60", timeout=0.1)["result"]["status"] == "running"
    assert call("shell_kill")["result"]["status"] == "killed"
    assert call("bash", command="X=5")["text"] == ""
    assert call("bash", command="echo $X")["text"] == "5\n"
    made_file = call("str_replace_based_edit_tool", command="create", path="t.txt", file_text="x")
    assert made_file["text"] == "File created successfully at: t.txt"
    assert call("nosuch")["text"] == "ERROR: unknown tool 'nosuch'"
    assert box.ask("POST", "/tools/shell_exec", json={}).status_code == 422


def test_trace_tells_what_was_done(box: Box) -> None:
    box.exec(["echo", "traced"])
    answer = box.ask("GET", "/trace")
    assert answer.headers["x-agentbox-parts"] == "1"
    records = [json.loads(line) for line in answer.text.splitlines()]
    assert ["echo", "traced"] in [record["args"].get("argv") for record in records]


def test_sandbox_whose_time_is_over_says_so_and_is_built_anew(alice: httpx.Client) -> None:
    box = made(alice, max_lifetime_seconds=1)
    box.write("kept", b"1")
    command = box.start("sleep 60")
    box.ask("GET", f"/commands/{command}", params={"wait_seconds": 30})
    told = box.ask("GET").json()
    assert (told["status"], told["why_gone"]) == ("gone", "its lifetime of 1 s is over")
    refused = box.ask("POST", "/exec", json={"command": "true"})
    assert (refused.status_code, refused.json()["code"]) == (410, "sandbox_gone")
    assert box.ask("POST", "/tools/shell_exec", json={"command": "true"}).json()["text"].startswith("ERROR: sandbox is")
    again = box.ask("POST", "/reset").json()
    assert (again["status"], again["rebuilt"]) == ("running", 1)
    assert box.read("kept") == b"1"
    box.ask("DELETE")


def test_workspace_with_a_name_outlives_its_sandbox(alice: httpx.Client, bob: httpx.Client) -> None:
    first = made(alice, workspace="project")
    first.write("kept", b"alice's")
    first.ask("DELETE")
    other = made(bob, workspace="project")
    assert other.ask("GET", "/files", params={"path": "kept"}).status_code == 404
    second = made(alice, workspace="project")
    assert second.read("kept") == b"alice's"
    assert second.ask("DELETE", params={"keep_workspace": "false"}).status_code == 204
    third = made(alice, workspace="project")
    assert third.ask("GET", "/files", params={"path": "kept"}).status_code == 404
    for one in (other, third):
        one.ask("DELETE", params={"keep_workspace": "false"})


def test_key_has_no_more_sandboxes_than_it_may_have(bob: httpx.Client) -> None:
    boxes = [made(bob) for _ in range(6)]
    refused = bob.post("/v1/sandboxes", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    assert boxes[0].ask("POST", "/fork").status_code == 409
    for one in boxes:
        one.ask("DELETE")


def test_what_is_wrong_with_a_request_is_said(alice: httpx.Client, box: Box) -> None:
    unknown = alice.post("/v1/sandboxes", json={"memory": 1})
    assert unknown.status_code == 422
    assert "memory_mb" in unknown.json()["detail"][0]["msg"]
    refused = box.ask("POST", "/exec", json={"command": ["nosuch"]})
    assert (refused.status_code, refused.json()["code"], refused.json()["errno"]) == (400, "cannot_start", "ENOENT")
    assert alice.post("/v1/sandboxes", json={"backend": "subprocess"}).json()["code"] == "unknown_backend"
    twice = box.client.get(f"{box.path}/files/info?path=a&path=b")
    assert twice.status_code == 422
    assert box.ask("PATCH").headers["allow"] == "DELETE, GET"


def test_clients_cannot_say_whose_request_it_is(kept_server: RunningServer, box: Box) -> None:
    forged = {"Authorization": f"Bearer {KEYS['bob']}", "X-Agentbox-Owner": "alice"}
    with kept_server.client(headers=forged) as client:
        assert client.get("/v1/sandboxes").json() == {"sandboxes": []}
        assert client.get(box.path).status_code == 404
    with kept_server.client() as client:
        assert client.get("/presence").status_code == 401
