# SPDX-License-Identifier: MIT
"""The thin layers over C modules do what the standard library's modules do."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.light import contexts, jsons, sockets

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_json_is_written_and_read_as_the_standard_library_does(value: object) -> None:
    assert jsons.loads(jsons.dumps(value)) == json.loads(json.dumps(value))
    assert json.loads(jsons.dumps(value)) == value
    assert jsons.loads(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ["", "{", "[1,]", "1 2", "NaN", '"\x01"', "{1:2}"])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        jsons.loads(text)


def test_descriptors_travel_with_bytes() -> None:
    ours, theirs = sockets.socketpair()
    read, write = os.pipe()
    with ours, theirs:
        sockets.send_fds(ours, [b"one"], [read, write])
        data, found, _, _ = sockets.recv_fds(theirs, 100, 4)
    os.write(found[1], b"x")
    assert (data, os.read(found[0], 1)) == (b"one", b"x")
    for fd in (read, write, *found):
        os.close(fd)


def test_an_accepted_connection_blocks_as_the_standard_library_s_does() -> None:
    listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    with listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind("\0agentbox-layers-" + os.urandom(8).hex())
        listener.listen()
        client.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.gettimeout() is None
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"


@pytest.mark.parametrize("module", [contextlib, contexts], ids=["contextlib", "contexts"])
def test_a_context_sees_the_exception_and_may_swallow_it(module: contextlib) -> None:  # type: ignore[valid-type]
    seen: list[str] = []

    @module.contextmanager  # type: ignore[attr-defined, misc]
    def swallowing(kind: type[Exception]):  # type: ignore[no-untyped-def]
        try:
            yield 3
        except kind:
            seen.append("swallowed")
        finally:
            seen.append("left")

    with swallowing(KeyError) as value:
        assert value == 3
        raise KeyError
    with pytest.raises(LookupError), swallowing(ValueError):
        raise LookupError
    with pytest.raises(StopIteration), swallowing(ValueError):
        raise StopIteration
    with module.suppress(KeyError, ValueError):  # type: ignore[attr-defined]
        raise KeyError
    with pytest.raises(IndexError), module.suppress(KeyError):  # type: ignore[attr-defined]
        raise IndexError
    assert seen == ["swallowed", "left", "left", "left"]
