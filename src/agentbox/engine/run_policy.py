# SPDX-License-Identifier: MIT
"""The policy of a run behind /v1/run: the request's and the operator's together, and what a box can hold of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.engine.box_world import HOME, PROGRAM_DIRECTORIES, BoxWorld, search_path_of
from agentbox.engine.guarding import GUARDED, notes_on_guard_alone
from agentbox.engine.policy_world import read_policy_file
from agentbox.engine.readings import Looking, Reading, Readings
from agentbox.errors import ConfigError, PolicyError
from agentbox.isolation.interpreters import Found
from agentbox.isolation.plan import WORKSPACE, WorkspaceView, workspace_view
from agentbox.linux.credentials import acting_as
from agentbox.models import Confinement, FileGrant, Limits
from agentbox.policy import record
from agentbox.policy.compilation import compile_policy
from agentbox.policy.document import Conjunction, Policy, canonical_text, intersect, policies_of
from agentbox.policy.evaluation import decide
from agentbox.policy.parser import parse
from agentbox.policy.paths import is_below
from agentbox.policy.questions import Env
from agentbox.policy.rule import PathTarget, Rule
from agentbox.records import dataclass, replace
from agentbox.workspace.descent import Parents
from agentbox.workspace.listing import list_tree
from agentbox.workspace.tree import Tree

if TYPE_CHECKING:
    from agentbox.policy.document import AnyPolicy

SETTING = "AGENTBOX_POLICY_CEILING"
MAX_LISTED_ENTRIES = 100_000
MAX_MOUNTS = 1000
# Places of a box that are its own and hold nothing of anybody.
_SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108
_KERNELS = ("/proc", "/dev", "/sys", "/run")


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """The effective policy of one run. `passed` are the variables of the request that reach the program, `withheld`
    those that do not. `reading` is where it comes from."""

    policy: AnyPolicy
    confinement: Confinement
    passed: Mapping[str, str]
    withheld: tuple[str, ...]
    warnings: tuple[str, ...]
    reading: Reading


class Ceiling:
    """The operator's policy, which narrows every run. Read once, for each interpreter in the world of its boxes."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._content: bytes | None = None
        self._read: dict[Found, Policy] = {}

    def open(self, interpreters: Iterable[Found]) -> None:
        """Read the file. Raises ConfigError when it cannot be read or enforced, with the line and column of a fault."""
        if self._path is None:
            return
        try:
            self._content = read_policy_file(str(self._path))
            for found in interpreters:
                self._read[found] = self._parsed(found)
        except OSError as error:
            raise ConfigError(
                f"{SETTING}={self._path} cannot be read: {error.strerror or error}", hint="name a policy file"
            ) from error
        except PolicyError as error:
            raise ConfigError(f"{SETTING}: {error.message}", hint=error.hint) from error

    @property
    def present(self) -> bool:
        """Whether there is one."""
        return self._path is not None

    def of(self, found: Found) -> Policy | None:
        """The policy for boxes of an interpreter; None when the operator has none."""
        return self._read.get(found)

    def _parsed(self, found: Found) -> Policy:
        assert self._content is not None
        assert self._path is not None
        world = BoxWorld(search_path_of(found.path), found.directories)
        policy = parse(
            self._content,
            root=WORKSPACE,
            path=str(self._path.absolute()),
            display=str(self._path),
            home=HOME,
            resolve=world.resolve,
            find_program=world.find_program,
            libexec_of=world.libexec_of,
            read_include=read_policy_file,
        )
        # What only a guard holds is refused where a language has none.
        _refuse_what_nothing_holds(policy, *GUARDED)
        # Reasons reach the caller, who is not told where the operator's files are.
        rules = tuple(
            record.replace(rule, place=record.replace(rule.place, path="the ceiling")) for rule in policy.rules
        )
        # Neither is the guard inside of a box, which gets the policy's tables.
        return record.replace(policy, rules=rules, sources=())


def decide_policy(
    text: str | None,
    ceiling: Policy | None,
    language: str,
    found: Found,
    limits: Limits,
    env: Mapping[str, str],
    readings: Readings,
    owner: str,
) -> RunPolicy | None:
    """The effective policy of a request with this policy text and environment, for an interpreter by name; None when
    there is neither text nor ceiling. It may be among `readings`, of this caller and for this one ceiling.

    Raises PolicySyntaxError, and PolicyError for rules that no layer of this server holds: they would be weaker than
    they read.
    """
    if text is None and ceiling is None:
        return None
    world = Looking(search_path_of(found.path), found.directories)
    reading = readings.of(
        (owner, text, language, found, limits),
        text,
        world,
        lambda world: _read(text, ceiling, language, found, limits, world),
    )
    passed = {name: value for name, value in env.items() if decide(reading.policy, Env(name)).allowed}
    return RunPolicy(
        policy=reading.policy,
        confinement=reading.confinement,
        passed=passed,
        withheld=tuple(name for name in env if name not in passed),
        warnings=reading.warnings,
        reading=reading,
    )


def _read(
    text: str | None, ceiling: Policy | None, language: str, found: Found, limits: Limits, world: Looking
) -> Reading:
    asked = None
    warnings: tuple[str, ...] = ()
    if text is not None:
        asked = parse(
            text,
            root=WORKSPACE,
            home=HOME,
            resolve=world.resolve,
            find_program=world.find_program,
            libexec_of=world.libexec_of,
        )
        _refuse_what_nothing_holds(asked, language)
        warnings = tuple(_useless_grants(asked, found))
    if ceiling is not None:
        _refuse_what_nothing_holds(ceiling, language)
    policy: AnyPolicy | None = intersect(asked, ceiling) if asked and ceiling else asked or ceiling
    assert policy is not None
    confinement = compile_policy(policy, limits, world, read_only=found.directories)
    return Reading(policy, confinement, (*warnings, *notes_on_guard_alone(confinement)), tuple(world.looks))


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a filled workspace shows, what was made in it for `write:` rules, and what the caller should know. `policy`
    is the one that was given, read where the links of the workspace are known."""

    policy: AnyPolicy
    view: WorkspaceView
    made: tuple[tuple[str, ...], ...]
    warnings: tuple[str, ...]


def prepare(run: RunPolicy, tree: Tree, entry_file: str, found: Found, *, guarded: bool) -> Prepared:
    """Compile the policy against a workspace that holds its files, before anything runs in it.

    Raises WorkspaceError for too many files, PolicyError for too many that a rule names one by one.
    """
    listing = list_tree(tree, MAX_LISTED_ENTRIES)
    world = BoxWorld(search_path_of(found.path), found.directories, listing)
    policy = _read_again(run.policy, world) if listing.links else run.policy
    confinement = run.reading.compiled(listing, lambda: compile_policy(policy, run.confinement.limits, world))
    files, made = _make_missing(confinement.files, tree)
    confinement = replace(confinement, files=files)
    view = workspace_view(confinement, f"{WORKSPACE}/{entry_file}")
    if len(view.shown) + len(view.read_only) + len(view.hidden) > MAX_MOUNTS:
        raise PolicyError(
            f"the policy's patterns match more than {MAX_MOUNTS} files of the working directory",
            hint="name directories instead",
        )
    rest = "for what the program makes the guard in the interpreter alone" if guarded else "not for what it makes"
    warnings = tuple(
        f"`{rule}` holds for what was there when the run began, {rest}"
        for rule in confinement.interpreter_only
        if rule.startswith(("deny:", "protect:"))
    )
    return Prepared(policy, view, made, warnings)


def take_back(tree: Tree, made: Sequence[tuple[str, ...]]) -> None:
    """Remove what was made for `write:` rules and stayed empty."""
    with acting_as(tree.uid, tree.gid), Parents(tree.fd) as parents:
        for parts in reversed(made):
            with contextlib.suppress(OSError):
                above = parents.at(parts[:-1])
                if not _is_file(parts):
                    os.rmdir(parts[-1], dir_fd=above)
                elif os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_size == 0:
                    os.unlink(parts[-1], dir_fd=above)


def _read_again(policy: AnyPolicy, world: BoxWorld) -> AnyPolicy:
    """The same rules where the links of the workspace are known."""
    again = tuple(
        parse(
            canonical_text(one),
            root=WORKSPACE,
            home=HOME,
            resolve=world.resolve,
            find_program=world.find_program,
            libexec_of=world.libexec_of,
        )
        for one in policies_of(policy)
    )
    return again[0] if len(again) == 1 else Conjunction(again)


def _make_missing(
    files: tuple[FileGrant, ...], tree: Tree
) -> tuple[tuple[FileGrant, ...], tuple[tuple[str, ...], ...]]:
    """A box can only write where something is: make what `write:` rules name, a file when the name has a suffix."""
    found = list(files)
    made = []
    with acting_as(tree.uid, tree.gid), Parents(tree.fd) as parents:
        for index, grant in enumerate(files):
            if grant.present or not grant.writable or not is_below(grant.path, WORKSPACE):
                continue
            parts = tuple(grant.path[len(WORKSPACE) + 1 :].split("/"))
            try:
                above = parents.at(parts[:-1])
                if _is_file(parts):
                    os.close(
                        os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=above)
                    )
                else:
                    os.mkdir(parts[-1], 0o755, dir_fd=above)
            except OSError:
                # A part of it is a link or a file: then the rule grants nothing.
                continue
            made.append(parts)
            found[index] = replace(grant, present=True)
    return tuple(found), tuple(made)


def _is_file(parts: Sequence[str]) -> bool:
    return bool(os.path.splitext(parts[-1])[1])


def _refuse_what_nothing_holds(policy: Policy, *languages: str) -> None:
    """Refuse rules that need more of a guard inside the interpreter than any of the languages has, and denials of
    places that a box cannot cover."""
    for rule in policy.rules:
        if isinstance(rule.target, PathTarget) and (fault := _fault(rule, rule.target, languages)):
            where = f"`{rule.text}` ({rule.place.path}:{rule.place.line})"
            raise PolicyError(f"{where} cannot be enforced here: {fault[0]}", hint=fault[1])


def _fault(rule: Rule, target: PathTarget, languages: Sequence[str]) -> tuple[str, str] | None:
    guarded = any(language in GUARDED for language in languages)
    if rule.verb == "read-once" and not guarded:
        return "nothing counts the reads of a file where the interpreter has no guard", "use `read:`"
    if target.max_bytes is not None:
        if not guarded:
            return (
                "nothing counts the bytes below a path in this language",
                "use `limits: disk_mb=...` and `write:` without max=",
            )
        if not is_below(target.path, WORKSPACE):
            return f"bytes are counted below {WORKSPACE} only", f"name a directory of {WORKSPACE}"
    if target.pattern and not rule.deny and rule.verb == "write" and not guarded:
        return (
            "files that do not exist yet have no names to allow where the interpreter has no guard",
            "name a directory",
        )
    if target.pattern and rule.deny and not is_below(target.path, WORKSPACE):
        return f"a pattern holds below {WORKSPACE} only", f"name a directory of {WORKSPACE}"
    scratch = any(is_below(target.path, place) for place in _SCRATCH)
    kernels = any(is_below(target.path, place) for place in _KERNELS) and not scratch
    if rule.deny and (target.path == "/" or kernels):
        return "a box cannot start without it", f"name a directory of {WORKSPACE}"
    return None


def _useless_grants(policy: Policy, found: Found) -> Iterable[str]:
    """Grants of what no box shows: a request cannot name files of the host."""
    visible = (*PROGRAM_DIRECTORIES, *found.directories, "/etc", "/proc", "/dev")
    for rule in policy.rules:
        target = rule.target
        if rule.deny or not isinstance(target, PathTarget):
            continue
        inside = is_below(target.path, WORKSPACE) or is_below(WORKSPACE, target.path)
        known = (*_SCRATCH, *(visible if rule.verb == "read" else ()))
        if not inside and not any(is_below(target.path, place) for place in known):
            yield f"`{rule.text}` grants nothing: the program's own files are in {WORKSPACE}"


__all__ = ["Ceiling", "Prepared", "RunPolicy", "decide_policy", "prepare", "take_back"]
