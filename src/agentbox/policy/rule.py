# SPDX-License-Identifier: MIT
"""What a rule is: its verb, its text, its place in the file, and what it stands for after it was read."""

from __future__ import annotations

from agentbox.errors import PolicySyntaxError
from agentbox.policy.record import TYPE_CHECKING, dataclass, field

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Union

    from agentbox.policy.glob import Tokens
    from agentbox.policy.hosts import Address, Network

_MAX_SHOWN = 300


@dataclass(frozen=True)
class Place:
    """Where something stands: file as given, line and column from 1; columns count code points."""

    path: str = "<policy>"
    line: int = 1
    column: int = 1


@dataclass(frozen=True)
class PathTarget:
    """Files. `path` is absolute and resolved; with `pattern` it is the directory below which the pattern applies.

    `alias` is where the rule's own name stands when its last part is a link. `max_bytes` caps what lies below.
    """

    path: str
    pattern: tuple[Tokens, ...] = ()
    pattern_text: str = ""
    alias: str = ""
    max_bytes: int | None = None

    @property
    def text(self) -> str:
        """The path with its pattern."""
        return f"{self.path.rstrip('/')}/{self.pattern_text}" if self.pattern_text else self.path


@dataclass(frozen=True)
class Rate:
    """At most `count` connections in any `seconds`."""

    count: int
    seconds: int


@dataclass(frozen=True)
class HostTarget:
    """A host by exact name, by pattern (`any_host` for `*`), by address or by network; `port` None is any port."""

    name: str = ""
    pattern: Tokens = ()
    any_host: bool = False
    address_pattern: bool = False
    address: Address | None = None
    network: Network | None = None
    port: int | None = None
    rate: Rate | None = None


@dataclass(frozen=True)
class UnixTarget:
    """A UNIX socket: a path as in PathTarget, `@NAME` in the abstract space, or any of both."""

    path: PathTarget | None = None
    abstract: Tokens = ()
    any_socket: bool = False
    rate: Rate | None = None


@dataclass(frozen=True)
class ExecTarget:
    """A program and the words it must be called with. `program` is the file that the first word means, None when
    there is none; `libexec` are directories whose programs only this program may start."""

    words: tuple[str, ...]
    program: str | None = None
    libexec: tuple[str, ...] = ()


@dataclass(frozen=True)
class EnvTarget:
    """Names of environment variables."""

    pattern: Tokens
    text: str


@dataclass(frozen=True)
class LimitTarget:
    """One limit and its amount, in the unit of its name."""

    name: str
    amount: float


@dataclass(frozen=True)
class SwitchTarget:
    """On or off."""

    on: bool


if TYPE_CHECKING:
    Target = Union[PathTarget, HostTarget, UnixTarget, ExecTarget, EnvTarget, LimitTarget, SwitchTarget]  # noqa: UP007 - CPython 3.9


@dataclass(frozen=True)
class Rule:
    """One rule. Two rules are equal when they say the same, wherever they stand.

    `value` is what the file says, without white space around it; `canonical` is what is hashed.
    """

    verb: str
    value: str
    canonical: str
    target: Target
    deny: bool = False
    place: Place = field(default=Place(), compare=False)

    @property
    def text(self) -> str:
        """The rule as a line of a policy file."""
        return f"deny: {self.verb} {self.value}" if self.deny else f"{self.verb}: {self.value}"


@dataclass(frozen=True)
class Surroundings:
    """What the reader of a policy needs to know of the world; functions are given by the caller.

    `root` and `home` are absolute. `resolve` turns an absolute path into one without links. `find_program` gives the
    resolved file of a program: of a bare name on the trusted PATH, or of an absolute path; None when there is none.
    `libexec_of` gives the directories of programs that belong to a program alone.
    """

    root: str
    home: str | None
    resolve: Callable[[str], str]
    find_program: Callable[[str], str | None]
    libexec_of: Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class Value:
    """A value in the text: the characters and where they stand."""

    text: str
    place: Place
    source: str

    def fail(self, problem: str, message: str, hint: str, offset: int = 0) -> NoReturn:
        """Raise PolicySyntaxError that points `offset` characters into the value."""
        raise syntax_error(problem, message, hint, self.place, self.source, self.place.column + offset)


def syntax_error(
    problem: str, message: str, hint: str, place: Place, source: str, column: int | None = None
) -> PolicySyntaxError:
    """An error of the text at `place`; the source line is shown without control characters, and up to column 300."""
    at = place.column if column is None else column
    shown = "".join(c if c == "\t" or c.isprintable() else "\ufffd" for c in source[:_MAX_SHOWN])
    return PolicySyntaxError(
        _cut(message),
        hint=_cut(hint),
        path=place.path,
        line=place.line,
        column=at,
        problem=problem,
        source=shown if at <= _MAX_SHOWN else "",
    )


def _cut(text: str) -> str:
    """A text that may quote a policy, short enough to be shown."""
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
