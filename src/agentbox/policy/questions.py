# SPDX-License-Identifier: MIT
"""What may be asked of a policy. Paths are resolved by the asker: absolute, without links, `.` and `..`."""

from __future__ import annotations

from agentbox.policy.record import TYPE_CHECKING, dataclass


@dataclass(frozen=True)
class Read:
    """May this file be read? `identity` tells files apart whatever their names, as `device:inode`."""

    path: str
    identity: str | None = None

    def __init__(self, path: str, identity: str | None = None) -> None:
        # Asked for every file that is opened: four times as fast as a record's own.
        content = self.__dict__
        content["path"] = path
        content["identity"] = identity


@dataclass(frozen=True)
class Write:
    """May this file be written, made, removed or renamed? `size_bytes` is what the file will have afterwards; `whole`
    means a directory with everything in it, as renaming does."""

    path: str
    size_bytes: int | None = None
    identity: str | None = None
    whole: bool = False

    def __init__(
        self, path: str, size_bytes: int | None = None, identity: str | None = None, whole: bool = False
    ) -> None:
        content = self.__dict__
        content["path"] = path
        content["size_bytes"] = size_bytes
        content["identity"] = identity
        content["whole"] = whole


@dataclass(frozen=True)
class Resolve:
    """May the address of this name be looked up?"""

    host: str


@dataclass(frozen=True)
class Connect:
    """May a connection be made? `host` is a name or an address as the program gave it; `address` is what a name was
    resolved to, when that is known; `now_seconds` is a clock that only goes forward. `own` tells that the address is
    this machine's, so that a rule must name it as it must a private one."""

    host: str
    port: int
    address: str | None = None
    now_seconds: float | None = None
    own: bool = False


@dataclass(frozen=True)
class Unix:
    """May this UNIX socket be used? A name in the abstract space begins with `@`."""

    path: str
    now_seconds: float | None = None


@dataclass(frozen=True)
class Exec:
    """May this program be started? `program` is the resolved file that will run, None when there is none; `parent`
    is the resolved file of the program that starts it."""

    argv: tuple[str, ...]
    program: str | None
    parent: str | None = None


@dataclass(frozen=True)
class Env:
    """May this variable be passed on?"""

    name: str


if TYPE_CHECKING:
    from typing import Union

    Question = Union[Read, Write, Resolve, Connect, Unix, Exec, Env]  # noqa: UP007 - CPython 3.9
