# SPDX-License-Identifier: MIT
"""What may be asked of a policy. Paths are resolved by the asker: absolute, without links, `.` and `..`."""

from __future__ import annotations

from typing import NamedTuple, Union


class Read(NamedTuple):
    """May this file be read? `identity` tells files apart whatever their names, as `device:inode`."""

    path: str
    identity: str | None = None


class Write(NamedTuple):
    """May this file be written, made, removed or renamed? `size_bytes` is what the file will have afterwards; `whole`
    means a directory with everything in it, as renaming does."""

    path: str
    size_bytes: int | None = None
    identity: str | None = None
    whole: bool = False


class Resolve(NamedTuple):
    """May the address of this name be looked up?"""

    host: str


class Connect(NamedTuple):
    """May a connection be made? `host` is a name or an address as the program gave it; `address` is what a name was
    resolved to, when that is known; `now_seconds` is a clock that only goes forward."""

    host: str
    port: int
    address: str | None = None
    now_seconds: float | None = None


class Unix(NamedTuple):
    """May this UNIX socket be used? A name in the abstract space begins with `@`."""

    path: str
    now_seconds: float | None = None


class Exec(NamedTuple):
    """May this program be started? `program` is the resolved file that will run, None when there is none; `parent`
    is the resolved file of the program that starts it."""

    argv: tuple[str, ...]
    program: str | None
    parent: str | None = None


class Env(NamedTuple):
    """May this variable be passed on?"""

    name: str


Question = Union[Read, Write, Resolve, Connect, Unix, Exec, Env]  # noqa: UP007 - CPython 3.9
