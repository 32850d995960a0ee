# SPDX-License-Identifier: MIT
from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from agentbox.isolation.launcher import wire


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def receive(receiver: wire.Receiver) -> tuple[dict[str, object], list[int]]:
    while (taken := receiver.take()) is None:
        assert receiver.fill()
    return taken


def test_messages_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    for index in range(5):
        wire.send(pair[0], {"n": index, "text": "é" * index})
    assert [receive(receiver)[0] for _ in range(5)] == [{"n": i, "text": "é" * i} for i in range(5)]


def test_each_message_keeps_its_own_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    pipes = [os.pipe() for _ in range(3)]
    wire.send(pair[0], {"n": 0}, [pipes[0][0]])
    wire.send(pair[0], {"n": 1})
    wire.send(pair[0], {"n": 2}, [pipes[1][0], pipes[2][0]])
    got = [receive(receiver) for _ in range(3)]
    assert [len(descriptors) for _, descriptors in got] == [1, 0, 2]
    for (_, write), fd in zip(pipes, [got[0][1][0], *got[2][1]], strict=True):
        os.write(write, b"%d" % write)
        assert os.read(fd, 10) == b"%d" % write
    for fd in [end for pipe in pipes for end in pipe] + got[0][1] + got[2][1]:
        os.close(fd)


def test_received_descriptors_do_not_survive_an_exec(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    wire.send(pair[0], {}, [0])
    _, (fd,) = receive(receiver)
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_descriptors_that_nobody_took_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    read, write = os.pipe()
    wire.send(pair[0], {}, [write])
    os.close(write)
    assert receiver.fill()
    receiver.close()
    assert os.read(read, 1) == b""
    os.close(read)


def test_a_frame_that_announces_too_much_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    pair[0].sendall(struct.pack("<I", wire.MAX_FRAME_BYTES + 1))
    assert receiver.fill()
    with pytest.raises(OSError, match="announced"):
        receiver.take()


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the most is"):
        wire.encode({"x": "y" * (wire.MAX_FRAME_BYTES + 1)}, 0)


def test_missing_descriptors_are_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    pair[0].sendall(wire.encode({}, 2))
    assert receiver.fill()
    with pytest.raises(OSError, match="2 descriptors announced, 0 came"):
        receiver.take()


def test_the_end_of_the_peer_is_seen(pair: tuple[socket.socket, socket.socket]) -> None:
    receiver = wire.Receiver(pair[1])
    pair[0].close()
    assert not receiver.fill()
