# SPDX-License-Identifier: MIT
"""The names that stand for those of `ctypes` do what those do."""

from __future__ import annotations

import ctypes

from agentbox.linux import foreign


def test_integers_of_c_are_those_of_ctypes() -> None:
    for name in (name for name in foreign.__all__ if name.startswith("c_")):
        theirs = getattr(ctypes, name)
        assert foreign.sizeof(getattr(foreign, name)) == ctypes.sizeof(theirs), name
        if name not in ("c_char_p", "c_void_p"):
            assert getattr(foreign, name)(-1).value == theirs(-1).value, name


def test_functions_of_c_tell_their_error_and_take_buffers_and_structures() -> None:
    class Pair(foreign.Structure):
        _fields_ = (("first", foreign.c_uint64), ("second", foreign.c_ushort))

    libc = foreign.CDLL(None, use_errno=True)
    assert (libc.chdir(b"/nowhere"), foreign.get_errno()) == (-1, 2)
    assert not hasattr(libc, "no_such_function")
    buffer = foreign.create_string_buffer(b"text")
    foreign.memset(buffer, ord("T"), 1)
    pair = Pair(foreign.addressof(buffer), 3)
    assert (buffer.raw, foreign.string_at(pair.first)) == (b"Text\0", b"Text")
    foreign.memmove(foreign.byref(pair), b"\7" + b"\0" * 9, 10)
    assert (pair.first, pair.second, foreign.sizeof(pair)) == (7, 0, 16)
    assert foreign.create_string_buffer(3).raw == b"\0\0\0"
