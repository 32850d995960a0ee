# SPDX-License-Identifier: MIT
"""What benchmarks ask: answers of a server are read to their end, and programs are watched to theirs."""

from __future__ import annotations

import os
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.closed_loops import by_spawning, over_http
from benchmarks.containers import archive
from benchmarks.http_door import Connection, answered, check
from benchmarks.interleaved import NotHereError
from benchmarks.processes import PYTHON, family, pss_bytes, rss_bytes, seen_to_work, spawning
from benchmarks.sections.runs import Tallied

BODY = b'{"stdout":"1\\n","timings":{"start":"warm"}}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
STREAM = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'20\r\nevent: stdout\ndata: {"seq":1,"text":"1\\n"}\n\n\r\n'
    b'20\r\nevent: result\ndata: {"stdout":"1\\n"}\n\n\r\n0\r\n\r\n'
)
PRINTS = [sys.executable, "-I", "-S", "-c", "print(1)"]


@contextmanager
def server(answer: bytes, *, answers_each: int = 1000) -> Iterator[str]:
    """Gives the same answer to every request, in small pieces, so many on each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(end: socket.socket) -> None:
        with end:
            for _ in range(answers_each):
                data = b""
                while not data.endswith(b"}"):
                    piece = end.recv(4096)
                    if not piece:
                        return
                    data += piece
                end.sendall(answer[:30])
                end.sendall(answer[30:])

    def accept() -> None:
        while True:
            try:
                end, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(end,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize("whole", [ANSWER, STREAM])
def test_answer_is_whole_at_its_last_byte_and_not_before(whole: bytes) -> None:
    assert [answered(whole[:length]) for length in range(len(whole) + 1)] == [False] * len(whole) + [True]


@pytest.mark.parametrize("answer", [ANSWER.replace(b"200", b"503"), ANSWER.replace(b'"1\\n"', b'"2\\n"')])
def test_run_that_did_not_print_1_is_no_measurement(answer: bytes) -> None:
    with pytest.raises(RuntimeError, match="the run failed"):
        check(answer)


def test_connection_takes_its_time_and_knows_how_the_run_began() -> None:
    with server(ANSWER) as url:
        connection = Connection(url, {"code": "print(1)"})
        assert connection() > 0
        assert connection.timings() == {"start": "warm"}


def test_figures_of_a_case_are_what_its_runs_say_of_themselves() -> None:
    said = iter([{"start": "warm", "start_ms": 1.0, "run_ms": 2.0}, {"start": "cold", "start_ms": 3.0, "run_ms": 4.0}])
    tallied = Tallied(lambda: (5.0, next(said)))
    assert [tallied(), tallied()] == [5.0, 5.0]
    assert tallied.figures() == {"% warm": 50.0, "% cold": 50.0, "start ms": 2.0, "run ms": 3.0}


def test_case_whose_runs_say_nothing_has_no_figures() -> None:
    tallied = Tallied(lambda: (5.0, {}))
    tallied()
    assert tallied.figures() == {}


def test_first_output_of_a_stream_comes_before_its_result() -> None:
    with server(STREAM) as url:
        connection = Connection(url, {"code": "print(1)"}, stream=True)
        total = connection()
        assert 0 < connection.first_ms <= total


def test_connection_that_the_server_closed_is_opened_again() -> None:
    with server(ANSWER, answers_each=1) as url:
        connection = Connection(url, {"code": "print(1)"})
        connection()
        first = connection.socket
        assert first is not None
        first.settimeout(10)
        assert first.recv(1, socket.MSG_PEEK) == b""
        connection()
        assert connection.socket is not first


def test_callers_in_a_closed_loop_are_all_counted() -> None:
    with server(ANSWER) as url:
        loop = over_http(url, {"code": "print(1)"}, callers=3, seconds=0.05)
    assert loop.runs >= 3
    assert loop.warm == loop.runs
    assert 0 < loop.p50_ms <= loop.p99_ms <= loop.worst_ms
    assert loop.rate == loop.runs / loop.seconds


def test_programs_in_a_closed_loop_are_all_counted() -> None:
    loop = by_spawning(PRINTS, callers=2, seconds=0.0)
    assert (loop.runs, loop.warm) == (2, None)


def test_program_that_says_something_else_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="said b'2"):
        spawning([*PRINTS[:-1], "print(2)"])()
    assert spawning(PRINTS)() > 0


def test_rival_that_does_not_run_here_is_not_here() -> None:
    with pytest.raises(NotHereError, match="that rival does not run here"):
        seen_to_work(spawning(["/nowhere/at/all"]), "that rival")


def test_family_of_a_process_has_its_children_and_their_memory() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        members = family(os.getpid())
        assert members[0] == os.getpid()
        assert child in members
        assert pss_bytes([child]) > 0
        assert rss_bytes(child) > 0
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


@pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"needs {PYTHON}")
def test_image_has_an_interpreter_and_no_path_that_leaves_it(tmp_path: Path) -> None:
    with tarfile.open(archive(tmp_path / "image.tar")) as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith("/") or ".." in name.split("/")]
    assert os.path.realpath(PYTHON).lstrip("/") in names
    assert "usr/local/bin/python" in names
