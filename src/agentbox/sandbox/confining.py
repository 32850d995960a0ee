# SPDX-License-Identifier: MIT
"""The policy of a sandbox: what of it which layer holds in a durable box, and what is refused because none does.

A sandbox is for commands, so it begins with grants of its own: the workspace, every program, every variable. They
stand for a kind of rule of which the policy grants nothing; a grant of that kind replaces them. What may be reached
over the network is granted by the policy alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentbox.engine.box_world import BoxWorld
from agentbox.engine.run_policy import MAX_LISTED_ENTRIES, MAX_MOUNTS
from agentbox.errors import PolicyError
from agentbox.isolation.durable import HOME, WORKSPACE
from agentbox.isolation.plan import WorkspaceView, workspace_view
from agentbox.linux.credentials import acting_as
from agentbox.models import Layer
from agentbox.policy.compilation import compile_policy, tightened
from agentbox.policy.document import Conjunction, Policy
from agentbox.policy.evaluation import decide
from agentbox.policy.parser import parse
from agentbox.policy.paths import is_below
from agentbox.policy.questions import Env
from agentbox.policy.rule import LimitTarget, PathTarget
from agentbox.records import dataclass, replace
from agentbox.workspace.descent import Parents
from agentbox.workspace.listing import EMPTY, list_tree
from agentbox.workspace.tree import Tree

if TYPE_CHECKING:
    from agentbox.models import Confinement, Enforcement, FileDenial, FileGrant, Limits, ProgramRule
    from agentbox.policy.decision import Decision
    from agentbox.policy.document import AnyPolicy
    from agentbox.policy.rule import Rule

_SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_FILES = ("read", "read-once", "write")
_SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - inside the box
# What a sandbox begins with, by the verb that replaces it.
_OWN_GRANTS = {"write": f"write: {WORKSPACE}", "env": "env: *"}
# What a limit is held by; those that are left out are the host's own to hold.
_HELD_BY = {"memory_mb": "memory", "cpus": "cpu", "pids": "pids", "disk_mb": "disk"}
Made = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Confined:
    """What a box is built from: what of the workspace it shows (None: all of it), which programs it may start (None:
    any), and what the caller should know. `made` is what was made in the workspace for rules that name it."""

    view: WorkspaceView | None
    programs: tuple[tuple[ProgramRule, ...], ...] | None
    warnings: tuple[str, ...] = ()
    made: Made = ()


class SandboxPolicy:
    """Made of texts, of which each must allow: the policy of the sandbox, and that of an operator above it. Raises
    PolicySyntaxError, and PolicyError for rules that no backend holds in a sandbox."""

    def __init__(self, *texts: str) -> None:
        self._parts = tuple(_Part(text) for text in texts)
        policies = tuple(part.policy for part in self._parts)
        self.policy: AnyPolicy = policies[0] if len(policies) == 1 else Conjunction(policies)
        world = BoxWorld(_SEARCH_PATH, ())
        self._variables = _joined(part.with_own(world, "env") for part in self._parts)

    @property
    def has_way_out(self) -> bool:
        """Whether anything may be reached over the network."""
        return all("net" in part.grants for part in self._parts)

    @property
    def decides_on_programs(self) -> bool:
        """Whether there are rules about what may be started."""
        return any("exec" in part.grants for part in self._parts)

    def limits(self, asked: Limits) -> Limits:
        """The limits, each lowered to the policy's where that is smaller."""
        return tightened(asked, self.policy)

    def denial_of_variable(self, name: str) -> Decision | None:
        """Why a variable may not reach a command; None for one that may."""
        verdict = decide(self._variables, Env(name))
        return None if verdict.allowed else verdict

    def check(self, backend: str, *, judges: bool, able: Sequence[str]) -> None:
        """Raise PolicyError for a rule that this backend does not hold; `able` are those that judge programs."""
        for rule in self._rules():
            if rule.verb == "exec" and not judges:
                raise _refusal(
                    rule,
                    f"backend {backend} cannot tell which programs are started in a box",
                    f"use a backend that can: {', '.join(able)}",
                )

    def check_held(self, enforcement: Enforcement, backend: str) -> None:
        """Raise PolicyError for a limit that nothing holds in a box that was built."""
        for rule in self._rules():
            if not isinstance(rule.target, LimitTarget) or rule.target.name not in _HELD_BY:
                continue
            resource = _HELD_BY[rule.target.name]
            if getattr(enforcement, resource) is Layer.NONE:
                raise _refusal(
                    rule,
                    f"nothing holds {resource} in this box of backend {backend}",
                    "`agentbox doctor` says what this host lacks; or leave the limit out",
                )

    def confine(self, workspace: str, limits: Limits) -> Confined:
        """What the policy leaves of a workspace. Looks at all of it where rules name files, so in a thread. Raises
        PolicyError, WorkspaceError."""
        shapes = any(part.shapes_files for part in self._parts)
        fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            tree = _tree(fd)
            world = _Inside(_SEARCH_PATH, (), list_tree(tree, MAX_LISTED_ENTRIES) if shapes else EMPTY)
            programs = None
            if self.decides_on_programs:
                # A part that grants no program leaves all of them.
                judged = [part.read(world) for part in self._parts if "exec" in part.grants]
                found = compile_policy(_joined(judged), limits, world).programs
                programs = tuple(_by_both_names(rules) for rules in found)
            if not shapes:
                return Confined(None, programs)
            policy = _joined(part.with_own(world, *_FILES) for part in self._parts)
            confinement, made = _make_missing(compile_policy(policy, limits, world), tree)
            try:
                return self._shown(confinement, programs, made)
            except PolicyError:
                _take_back(tree, made)
                raise
        finally:
            os.close(fd)

    def _shown(
        self, confinement: Confinement, programs: tuple[tuple[ProgramRule, ...], ...] | None, made: Made
    ) -> Confined:
        by_text = {rule.text: rule for rule in self._rules()}
        absent = {denial.rule for denial in confinement.file_denials if not denial.present}
        warnings = []
        for text in confinement.interpreter_only:
            rule = by_text.get(text)
            exact = rule is not None and isinstance(rule.target, PathTarget) and not rule.target.pattern
            if rule is not None and exact and text in absent:
                raise _refusal(rule, "there is nothing at that path, and nothing can be made there", "make it first")
            if not exact:
                warnings.append(f"`{text}` holds for what was there when the box was built, not for what it makes")
        warnings += [
            f"`{rule.text}` grants nothing: the sandbox's own files are in {WORKSPACE}"
            for rule in by_text.values()
            if _is_useless(rule)
        ]
        view = workspace_view(confinement)
        if len(view.shown) + len(view.read_only) + len(view.hidden) > MAX_MOUNTS:
            raise PolicyError(
                f"the policy's patterns match more than {MAX_MOUNTS} files of the workspace",
                hint="name directories instead",
            )
        return Confined(view, programs, tuple(warnings), made)

    def _rules(self) -> Iterable[Rule]:
        return (rule for part in self._parts for rule in part.policy.rules)


class _Part:
    """One text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.policy = self.read(BoxWorld(_SEARCH_PATH, ()))
        self.grants = {rule.verb for rule in self.policy.rules if not rule.deny}
        self.shapes_files = any(rule.verb in (*_FILES, "protect") for rule in self.policy.rules)
        for rule in self.policy.rules:
            if fault := _fault(rule):
                raise _refusal(rule, *fault)
            if rule.deny and rule.verb == "exec" and "exec" not in self.grants:
                raise _refusal(
                    rule,
                    "a program can be copied, and the copy is another one",
                    "name with `exec:` what may be started; everything else is denied then",
                )

    def read(self, world: BoxWorld) -> Policy:
        """The policy as it reads in that world."""
        return _parsed(self._text, world)

    def with_own(self, world: BoxWorld, *verbs: str) -> Policy:
        """The same with what a sandbox begins with, where the text grants nothing by any of these verbs."""
        policy = self.read(world)
        if self.grants.intersection(verbs):
            return policy
        own = _parsed("\n".join(_OWN_GRANTS[verb] for verb in verbs if verb in _OWN_GRANTS), world)
        return Policy((*policy.rules, *own.rules), policy.root, policy.home, policy.real_root)


def _parsed(text: str, world: BoxWorld) -> Policy:
    return parse(
        text,
        root=WORKSPACE,
        home=HOME,
        resolve=world.resolve,
        find_program=world.find_program,
        libexec_of=world.libexec_of,
    )


def _joined(policies: Iterable[Policy]) -> AnyPolicy:
    found = tuple(policies)
    return found[0] if len(found) == 1 else Conjunction(found)


class _Inside(BoxWorld):
    """The world of a sandbox, where /root is another name of the workspace."""

    def resolve(self, path: str) -> str:
        """See BoxWorld."""
        return super().resolve(f"{WORKSPACE}{path[len(HOME) :]}" if is_below(path, HOME) else path)

    def find_program(self, name: str) -> str | None:
        """See BoxWorld."""
        return super().find_program(f"{WORKSPACE}{name[len(HOME) :]}" if is_below(name, HOME) else name)


def give_back(workspace: str, made: Made) -> None:
    """Remove what was made for rules and stayed empty. Does not raise."""
    if not made:
        return
    with contextlib.suppress(OSError):
        fd = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _take_back(_tree(fd), made)
        finally:
            os.close(fd)


def _take_back(tree: Tree, made: Made) -> None:
    with acting_as(tree.uid, tree.gid), Parents(tree.fd) as parents:
        for parts in reversed(made):
            with contextlib.suppress(OSError):
                above = parents.at(parts[:-1])
                found = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    os.rmdir(parts[-1], dir_fd=above)
                elif stat.S_ISREG(found.st_mode) and found.st_size == 0:
                    os.unlink(parts[-1], dir_fd=above)


def _tree(fd: int) -> Tree:
    """A workspace as its owner sees it."""
    owner = os.fstat(fd)
    return Tree(fd, owner.st_uid, owner.st_gid) if os.geteuid() == 0 else Tree(fd)


def _fault(rule: Rule) -> tuple[str, str] | None:
    """Why no backend holds a rule in a sandbox, and what to do."""
    target = rule.target
    if not isinstance(target, PathTarget):
        return None
    inside = is_below(target.path, WORKSPACE) or is_below(target.path, HOME)
    if rule.verb == "read-once" or target.max_bytes is not None:
        what = "reads of a file" if rule.verb == "read-once" else "bytes below a path"
        return f"nothing counts {what} for any program", "only `agentbox run` and /v1/run count, for Python and Node"
    if target.pattern and not rule.deny and rule.verb == "write":
        return "files that do not exist yet have no names to allow", "name a directory"
    if target.pattern and not inside:
        return f"a pattern holds below {WORKSPACE} only", f"name a directory of {WORKSPACE}"
    if rule.deny and not inside:
        return f"only what lies in {WORKSPACE} can be taken away from a sandbox", "choose an image without it"
    if rule.deny and rule.verb == "read" and not target.pattern and target.path in (WORKSPACE, HOME):
        return "a sandbox works in it", f"name what of {WORKSPACE} it may not read"
    return None


def _refusal(rule: Rule, why: str, hint: str) -> PolicyError:
    return PolicyError(
        f"`{rule.text}` ({rule.place.path}:{rule.place.line}) cannot be held in a sandbox: {why}", hint=hint
    )


def _is_useless(rule: Rule) -> bool:
    """Whether a rule lets write what no box shows."""
    if rule.verb != "write" or rule.deny or not isinstance(rule.target, PathTarget):
        return False
    path = rule.target.path
    known = any(is_below(path, place) for place in (WORKSPACE, HOME, *_SCRATCH))
    return not known and not is_below(WORKSPACE, path)


def _by_both_names(rules: Iterable[ProgramRule]) -> tuple[ProgramRule, ...]:
    """The rules; for programs of the workspace also by its other name, which is what a program is called by it."""
    found = []
    for rule in rules:
        found.append(rule)
        if rule.program is not None and is_below(rule.program, WORKSPACE):
            found.append(replace(rule, program=f"{HOME}{rule.program[len(WORKSPACE) :]}"))
    return tuple(found)


def _make_missing(confinement: Confinement, tree: Tree) -> tuple[Confinement, Made]:
    """A box can only show and cover what is there: make what rules name by an exact path, but not to be read."""
    made: list[tuple[str, ...]] = []
    grants = list(confinement.files)
    denials = list(confinement.file_denials)
    with acting_as(tree.uid, tree.gid), Parents(tree.fd) as parents:
        for index, grant in enumerate(grants):
            if grant.writable and _made(grant, parents, made):
                grants[index] = replace(grant, present=True)
        for place, denial in enumerate(denials):
            if _made(denial, parents, made):
                denials[place] = replace(denial, present=True)
    return replace(confinement, files=tuple(grants), file_denials=tuple(denials)), tuple(made)


def _made(named: FileGrant | FileDenial, parents: Parents, made: list[tuple[str, ...]]) -> bool:
    """Whether a path that was not there is there now."""
    if named.present or not is_below(named.path, WORKSPACE) or named.path == WORKSPACE:
        return False
    parts = tuple(named.path[len(WORKSPACE) + 1 :].split("/"))
    try:
        above = parents.at(parts[:-1])
        if "." in parts[-1]:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(parts[-1], flags, 0o644, dir_fd=above))
        else:
            os.mkdir(parts[-1], 0o755, dir_fd=above)
    except OSError:
        # A part of it is a link or a file: a grant then gives nothing, and a denial is not held.
        return False
    made.append(parts)
    return True
