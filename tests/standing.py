# SPDX-License-Identifier: MIT
"""As whom a server under test runs: root, an ordinary user, an ordinary user with control groups of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass, field

from tests.delegated_cgroup import delegated_cgroup
from tests.ordinary_user import OrdinaryUser, ordinary_user

NAMES = ("root", "user", "user_with_cgroups")


@dataclass(frozen=True)
class Standing:
    """`command` starts Python; `user` is None where that is the user who runs the tests."""

    name: str
    uid: int
    command: tuple[str, ...] = (sys.executable,)
    environment: dict[str, str] = field(default_factory=dict)
    user: OrdinaryUser | None = None


OWN = Standing("own", os.geteuid())


class Standings:
    """Prepares each standing when it is first asked for; leaving the context removes what was made."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._found: dict[str, Standing | str] = {}
        self._user: OrdinaryUser | None = None

    def __enter__(self) -> Standings:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def choose(self, name: str) -> Standing | str:
        """The standing of that name, or why this test run cannot have it."""
        if name not in self._found:
            self._found[name] = self._prepare(name)
        return self._found[name]

    def _prepare(self, name: str) -> Standing | str:
        if os.geteuid() != 0:
            return Standing(name, os.geteuid()) if name == "user" else "only root can start a server this way"
        if name == "root":
            return Standing(name, 0)
        if self._user is None:
            self._user = self._stack.enter_context(ordinary_user())
        user, prefix = self._user, ()
        if name == "user_with_cgroups":
            prefix = self._stack.enter_context(delegated_cgroup(user.uid))
            if not prefix:
                return "not even root can make control groups"
        return Standing(name, user.uid, (*prefix, *user.command), user.environment, user)
