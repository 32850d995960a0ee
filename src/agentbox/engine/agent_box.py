# SPDX-License-Identifier: MIT
"""The box of an `agentbox run`: its plan, its environment, and what holds which part of the policy in it."""

from __future__ import annotations

import errno
import os

from agentbox.engine.guarding import CHANNEL, POLICY, guarded_environment, held_by_guard_alone
from agentbox.engine.lent_files import OWN_DIRECTORY
from agentbox.errors import ConfinementError
from agentbox.guest.injection import GUARD_DIR, injection, policy_file
from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.backends.jail import JailBackend
from agentbox.isolation.plan import AgentView, agent_plan, unisolated_plan
from agentbox.models import Enforcement, Layer
from agentbox.policy.document import policies_of
from agentbox.policy.evaluation import decide
from agentbox.policy.paths import is_below
from agentbox.policy.questions import Env
from agentbox.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from agentbox.engine.command_view import CommandView
    from agentbox.engine.outside import Outside
    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.backends.docker import DockerBackend
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.network import Network
    from agentbox.isolation.plan import LaunchPlan
    from agentbox.models import Confinement
    from agentbox.policy.document import AnyPolicy

_CAP = " max="
_HOME = "/tmp/agentbox-home"  # noqa: S108 - inside the box
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Variables that every program gets when they are set here; all others need an `env:` rule.
_ALWAYS_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "TZ")


class AgentBox:
    """Builds the box of one run. `outside` is what stands in for the box's own directories with the guard alone.
    `sources` are copies on the host that are shown in place of what is granted, by path."""

    def __init__(
        self,
        confinement: Confinement,
        policy: AnyPolicy,
        view: CommandView,
        directory: str,
        guard: str,
        *,
        walled: bool,
        isolation: str = "jail",
        sources: Mapping[str, str] | None = None,
        typed: str = "",
    ) -> None:
        self._sources = sources or {}
        self._confinement = confinement
        self._policy = policy
        self._view = view
        self._directory = directory
        self._guard = guard
        self._isolation = isolation
        # As the user named the program: without a slash it is an image's, where there is one.
        self._typed = typed or view.path
        self.program = view.path
        self.outside = None if walled else _outside()

    @property
    def judged(self) -> bool:
        """Whether every program waits for the judge before it changes anything."""
        return self.outside is None and self._isolation == "jail"

    def enforcement(self, facilities: Facilities, *, observe: bool) -> Enforcement:
        """Which layer holds what. The jail itself is tried when its box is built; nothing is claimed for a run that
        only observes."""
        if observe:
            return Enforcement()
        if self.outside is not None:
            held = Layer.INTERPRETER
            return Enforcement(filesystem=held, network=held, exec=held)
        found = replace(self._claims(facilities), exec=Layer.KERNEL)
        lent = [grant for grant in self._confinement.files if grant.present and grant.writable]
        if lent:
            # What is written there lies on the host's disk; the kernel holds the box's own directories only.
            capped = all(_CAP in grant.rule for grant in lent)
            found = replace(found, disk=Layer.INTERPRETER if capped else Layer.NONE)
        if held_by_guard_alone(self._confinement):
            return replace(found, filesystem=Layer.INTERPRETER)
        return found

    def _claims(self, facilities: Facilities) -> Enforcement:
        if self._isolation == "gvisor":
            from agentbox.isolation.backends.gvisor import GvisorBackend

            return GvisorBackend(facilities).claims()
        if self._isolation == "docker":
            return docker_backend(facilities).claims()
        return JailBackend(facilities).claims()

    async def build(
        self,
        facilities: Facilities,
        on_spawn: Callable[[dict[str, Any]], None],
        *,
        witness_all: bool,
        checkpoint: bool = False,
        network: Network | None = None,
    ) -> LiveBox:
        """The box, ready for the command; `on_spawn` gets what the exec judge reports. Raises IsolationError."""
        by_cgroup = "memory" in facilities.held
        if self.outside is not None:
            plan = unisolated_plan(
                self._confinement,
                workspace=self._directory,
                host_uid=os.geteuid(),
                host_gid=os.getegid(),
                memory_held_by_cgroup=by_cgroup,
            )
            self.outside.write_policy(policy_file(self._policy))
            return await build_in_cgroup(facilities, plan, self._confinement, lambda: None)
        view = AgentView(
            directory=self._directory,
            shown=(*((path, path) for path in self._shown()), (self._guard, GUARD_DIR)),
            files=((POLICY, policy_file(self._policy)),),
            command=(self._view.real, self._view.arguments),
            channel=CHANNEL,
            home=self._home(),
            witness_all=witness_all,
            checkpoint=checkpoint,
            sources=tuple(sorted(self._sources.items())),
        )

        def plan_for(uid: int, gid: int) -> LaunchPlan:
            return agent_plan(
                self._confinement,
                facilities.host_view(),
                view,
                host_uid=uid,
                host_gid=gid,
                memory_held_by_cgroup=by_cgroup,
            )

        try:
            if self._isolation == "gvisor":
                return await self._build_with_gvisor(
                    facilities, lambda uid: plan_for(uid, uid), on_spawn, witness_all=witness_all, network=network
                )
            if self._isolation == "docker":
                from agentbox.isolation.backends.docker.agent import build_agent

                backend = docker_backend(facilities)
                box, self.program = await build_agent(backend, plan_for, self._confinement, network, self._typed)
                return box
            uid, gid = facilities.take_ids()
            return await build_in_cgroup(
                facilities,
                plan_for(uid, gid),
                self._confinement,
                lambda: facilities.ids.give_back(uid),
                on_spawn=on_spawn,
                network=network,
            )
        except ConfinementError as error:
            raise _explained(error) from error

    def _shown(self) -> list[str]:
        """What the box shows of the host for the command's sake."""
        shown = list(self._view.shown)
        if self._isolation == "docker" and "/" not in self._typed:
            # The image's program has files of its own.
            own = (self._view.path, self._view.real)
            shown = [path for path in shown if not any(is_below(file, path) for file in own)]
        return shown

    async def _build_with_gvisor(
        self,
        facilities: Facilities,
        plan_for: Callable[[int], LaunchPlan],
        on_spawn: Callable[[dict[str, Any]], None],
        *,
        witness_all: bool,
        network: Network | None,
    ) -> LiveBox:
        from agentbox.isolation.backends.gvisor.building import build, must_load, seen

        must_load(self._view.real)
        box = await build(facilities, plan_for, self._confinement, network=network)
        return await seen(box, on_spawn, everything=witness_all)

    def environment(
        self, given: Mapping[str, str], *, observe: bool, seed: str = "", mode: str = "record"
    ) -> dict[str, str]:
        """The command's variables out of the caller's own: what the policy passes, and what the guard needs. With a
        `seed` clocks and randomness are such as a replay can give again; `mode` is `record` or `replay`."""
        passed = {
            name: value
            for name, value in given.items()
            if name in _ALWAYS_PASSED or decide(self._policy, Env(name)).allowed
        }
        outside = self.outside
        base = {
            "HOME": outside.home if outside else self._home(),
            "TMPDIR": outside.scratch if outside else "/tmp",  # noqa: S108 - the box's own
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            **passed,
            "PATH": given.get("PATH", os.defpath) if self._isolation != "docker" else _IMAGE_PATH,
        }
        kind, root, entry = self._view.kind, self._directory, self._view.script
        if outside is None:
            return guarded_environment(
                base, kind=kind, root=root, entry=entry, enforce=not observe, seed=seed, mode=mode
            )
        return injection(
            kind,
            self._guard,
            outside.channel,
            outside.policy,
            root,
            mode,
            not observe,
            base,
            wall="none",
            private=(outside.scratch,),
            entry=entry,
            seed=seed,
            node_flags=() if observe else self._node_flags(outside, entry),
        )

    def _node_flags(self, outside: Outside, entry: str) -> list[str]:
        """Node's own permissions where no wall stands behind its guard, in versions that have them."""
        if self._view.kind != "node":
            return []
        from agentbox.engine.node_flags import node_grants, permission_flags, version_of

        own = (str(self._guard), outside.channel, outside.policy)
        reads = (*self._view.shown, *own, *((os.path.dirname(entry),) if entry else ()))
        grants = node_grants(self._policy, reads=reads, writes=(outside.scratch, outside.home))
        return permission_flags(version_of(self._view.real), grants)

    def _home(self) -> str:
        """A home below the box's own /tmp, or beside agentbox's files where a rule lends the host's /tmp."""
        lent = any(grant.present and is_below(_HOME, grant.path) for grant in self._confinement.files)
        return f"{OWN_DIRECTORY}/home" if lent else _HOME


def docker_backend(facilities: Facilities) -> DockerBackend:
    """The backend, its engine asked. Raises BackendUnavailableError."""
    from agentbox.isolation.backends.docker import DockerBackend

    backend = DockerBackend(facilities)
    backend.daemon.info()
    return backend


def _outside() -> Outside:
    from agentbox.engine.outside import Outside

    return Outside()


def beyond_disk_limit(policy: AnyPolicy, confinement: Confinement) -> list[str]:
    """What a user should know who limits the disk and lends the host's without a cap."""
    limited = any("disk_mb" in one.limits for one in policies_of(policy))
    rules = [grant.rule for grant in confinement.files if grant.present and grant.writable and _CAP not in grant.rule]
    if not limited or not rules:
        return []
    return [f"disk_mb holds the box's own directories, not what `{rules[0]}` lends: add max= to the rule"]


def _explained(error: ConfinementError) -> ConfinementError:
    """Some failures to build a box are about what a policy lends, and are better said so."""
    step, code = str(error.data.get("step", "")), error.data.get("errno")
    path = step.removeprefix("map the owner of ")
    if path != step and code in (errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
        return ConfinementError(
            f"{path} cannot be lent to a box by root: its file system, or one mounted below, has no id-mapped mounts",
            hint="start agentbox as the user who owns the files, or grant a path on another file system",
            step=step,
            errno=int(code),
        )
    return error
