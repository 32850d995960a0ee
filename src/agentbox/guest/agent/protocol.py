# SPDX-License-Identifier: MIT
"""Numbers of spec/agent, and the START frame."""

from __future__ import annotations

import os
import struct

VERSION = 1
MAX_REQUEST = 1 << 22
MAX_OUTPUT = 1 << 16
WINDOW = 1 << 20
MAX_COMMANDS = 4096
MAX_PENDING = 1 << 20

START, STDIN, STDIN_END, RESIZE, SIGNAL, KILL, CREDIT = range(1, 8)
HELLO, STARTED, FAILED, STDOUT, STDERR, EXIT, CLOSED, TAKEN, KILLED, OVER = range(65, 75)
TERMINAL, WITH_STDIN, MERGED, OWN = 1, 2, 4, 8
HEAD = struct.Struct(">IBI")


class Request:
    """A START frame, taken apart. Raises ValueError."""

    def __init__(self, payload: bytes) -> None:
        self.flags, self.rows, self.columns, argc, envc = struct.unpack_from(">BHHII", payload)
        strings = payload[13:].split(b"\0")[:-1]
        if not argc or len(strings) < 2 + argc + envc:
            raise ValueError("a START frame")
        self.user = os.fsdecode(strings[0])
        self.directory = os.fsdecode(strings[1])
        self.argv = [os.fsdecode(one) for one in strings[2 : 2 + argc]]
        self.variables = [os.fsdecode(one) for one in strings[2 + argc : 2 + argc + envc]]

    def environment(self) -> dict[str, str]:
        """The agent's own, with what was asked for."""
        merged = dict(os.environ)
        for one in self.variables:
            name, equals, value = one.partition("=")
            if equals:
                merged[name] = value
            else:
                merged.pop(name, None)
        return merged
