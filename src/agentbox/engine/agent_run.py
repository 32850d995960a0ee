# SPDX-License-Identifier: MIT
"""`agentbox run`: a command in a box that shows the project as far as the policy grants it, and its trace."""

from __future__ import annotations

import os

from agentbox.config import usual_state_directory
from agentbox.engine.agent_box import AgentBox, beyond_disk_limit
from agentbox.engine.command_view import look_at
from agentbox.engine.host_sockets import sockets_below
from agentbox.engine.lent_files import lend
from agentbox.engine.run_files import RunFiles
from agentbox.errors import (
    AgentboxError,
    TraceError,
    UnguardedError,
)
from agentbox.guest.injection import GUARD_DIR, known_guard_directory, why_unguarded
from agentbox.light import asyncio, bundle, contextlib
from agentbox.models import Enforcement, FileDenial, Layer
from agentbox.policy.compilation import compile_policy
from agentbox.policy.document import policies_of
from agentbox.policy.paths import is_below
from agentbox.policy.rule import PathTarget
from agentbox.records import dataclass, field, replace
from agentbox.trace.keys import KeyStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from agentbox.config import Settings
    from agentbox.egress.events import OnEvent
    from agentbox.egress.rules import EgressRules
    from agentbox.engine.checkpointing import Checkpointed
    from agentbox.engine.lent_files import Lent
    from agentbox.engine.way_out import WayOut
    from agentbox.isolation.backend import LiveBox
    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.network import Network
    from agentbox.models import Confinement, FileGrant, HostTraffic, Limits
    from agentbox.policy.document import AnyPolicy

    OpenWayOut = Callable[[OnEvent], Awaitable[WayOut]]


CHECKPOINTS = ".agentbox/checkpoints"


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A command to run under a policy. `directory` is where relative paths start; `environment` the caller's own."""

    argv: tuple[str, ...]
    policy: AnyPolicy
    directory: str
    environment: Mapping[str, str]
    limits: Limits
    trace: str | None = None
    isolation: str = "jail"
    observe: bool = False
    witness: str = "exec"
    checkpoint: bool = False
    live_clocks: bool = False
    # Of results and outputs only hashes are recorded; such a run cannot be replayed.
    hash_bodies: bool = False


@dataclass(slots=True)
class AgentOutcome:
    """How it ended. `exit_code` is 128+n after signal n; `problem` says why a run was ended by the runner. Where not
    all of it is `recorded`, the trace has no end. `startup_files` are what it wrote that runs later, outside: path and
    why; `notes` what this host could not give its way out; `checkpoint` is there where one was taken."""

    exit_code: int
    trace: str
    counts: dict[str, int]
    run_id: str
    enforcement: Enforcement = field(default_factory=Enforcement)
    problem: str = ""
    recorded: bool = True
    warnings: list[str] = field(default_factory=list)
    egress: dict[str, HostTraffic] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    startup_files: list[dict[str, str]] = field(default_factory=list)
    checkpoint: Checkpointed | None = None


async def run_agent(request: AgentRequest, settings: Settings, files: Any, facilities: Facilities) -> AgentOutcome:
    """Run the command to its end with this process's own stdin, stdout and stderr.

    `files` is the FileView that the policy is compiled with. The caller closes `facilities`. Raises
    InvalidRequestError, BackendUnavailableError, ConfinementError, TraceError; nothing ran then.
    """
    directory = request.directory
    search_path = request.environment.get("PATH", os.defpath)
    view = look_at(request.argv, directory, search_path)
    confinement = compile_policy(request.policy, request.limits, files)
    walled = request.isolation != "guard"
    if request.isolation in ("gvisor", "docker"):
        _must_hold(request.isolation, confinement, facilities, settings)
    rules = _egress_rules(request.policy) if walled else None
    if not walled and (why := why_unguarded(request.argv)):
        raise UnguardedError(f"failed to arm sandbox, refusing to run: {why}", hint="run it with --isolation jail")
    guard = known_guard_directory(
        f"{settings.state_directory()}/guards",
        view.path if view.kind == "python" else None,
        seen_as=GUARD_DIR if walled else None,
    )
    view = view.with_programs(confinement.programs, search_path)
    confinement = replace(confinement, files=(*confinement.files, *_links(request.policy, confinement)))
    run_files = RunFiles(request.directory, request.trace)
    run_files.open()
    keys = KeyStore(settings.trace_key_dir())
    # Both before the plan, which keeps them out of reach.
    key = keys.load_or_create()
    run_files.create()
    building = None
    try:
        run_files.join()
        if request.checkpoint:
            # Before the box, which hides it.
            make_store(directory)
        lent = lend(confinement, trace=run_files.trace, private=_private(settings, directory))
        if walled:
            lent.warnings += beyond_disk_limit(request.policy, lent.confinement)
        open_way_out = _plan_way_out(rules, lent, request, settings.dns_upstream, facilities) if walled else None
        planned = AgentBox(
            lent.confinement,
            request.policy,
            view,
            directory,
            guard,
            walled=walled,
            isolation=request.isolation,
            typed=request.argv[0],
        )
        building = Building(planned, facilities, witness_all=request.witness == "all", checkpoint=request.checkpoint)
        if open_way_out is None:
            # What records the run, and its trace, come to be meanwhile; the command starts after both.
            await building.begin()
        bundle.load("session")
        from agentbox.engine.agent_session import Session

        return await Session(request, view, lent, building, keys, key, run_files, open_way_out).run()
    finally:
        run_files.forget()
        if building is not None:
            await building.give_up()


def _must_hold(isolation: str, confinement: Confinement, facilities: Facilities, settings: Settings) -> None:
    """Raise BackendUnavailableError where this host lacks what the backend needs, PolicyError where it cannot hold a
    rule."""
    from agentbox.errors import BackendUnavailableError, PolicyError
    from agentbox.isolation import registry
    from agentbox.isolation.facilities import DockerOptions

    facilities.docker = DockerOptions(
        settings.docker_host, settings.docker_image, settings.docker_node_image, settings.docker_runtime
    )
    backend = registry.make(isolation, facilities)
    lacking = next((one for one in backend.requirements() if not one.met), None)
    if lacking is not None:
        raise BackendUnavailableError(f"backend {isolation} needs {lacking.name}: {lacking.detail}", hint=lacking.fix)
    if why := backend.refuses(confinement):
        raise PolicyError(why, hint="run it with --isolation jail, or take the rule out")


class Building:
    """The box of a run while it is built. What its exec judge reports goes to `on_spawn`, which is set before the
    command starts."""

    def __init__(
        self, planned: AgentBox, facilities: Facilities, *, witness_all: bool, checkpoint: bool = False
    ) -> None:
        self.planned = planned
        self.facilities = facilities
        self.on_spawn: Callable[[dict[str, Any]], None] = lambda _: None
        self._witness_all = witness_all
        self._checkpoint = checkpoint
        self._begun: asyncio.Task[LiveBox] | None = None
        self._taken = False

    async def begin(self) -> None:
        """Send the plan to the launcher, and do not wait."""
        self._begun = asyncio.create_task(self._build(None))
        await asyncio.sleep(0)

    async def box(self, network: Network | None) -> LiveBox:
        """The box, ready for the command and the caller's to destroy. Raises IsolationError."""
        built = await (self._begun or self._build(network))
        self._taken = True
        return built

    async def _build(self, network: Network | None) -> LiveBox:
        return await self.planned.build(
            self.facilities,
            lambda report: self.on_spawn(report),
            witness_all=self._witness_all,
            checkpoint=self._checkpoint,
            network=network,
        )

    async def give_up(self) -> None:
        """Destroy a box that nobody took."""
        if self._begun is not None and not self._taken:
            self._begun.cancel()
            with contextlib.suppress(asyncio.CancelledError, AgentboxError, OSError):
                await (await self._begun).destroy()


def _plan_way_out(
    rules: EgressRules | None, lent: Lent, request: AgentRequest, dns_upstream: str | None, facilities: Facilities
) -> OpenWayOut | None:
    """How to open the run's way out, None for none. What a policy lends shows no socket of the host; one that a rule
    names is the gateway's own at the same place."""
    shown = [grant.path for grant in lent.confinement.files if grant.present]
    sockets = sockets_below(shown, request.directory)
    named = [path for path in sockets if rules is not None and rules.unix(path, counted=False).allowed]
    hidden = [FileDenial(path, True, True, "a socket of the host") for path in sockets if path not in named]
    lent.confinement = replace(lent.confinement, file_denials=(*lent.confinement.file_denials, *hidden))
    if rules is None:
        return None
    from agentbox.engine.run_network import portless_loopback
    from agentbox.engine.way_out import Egress

    lent.warnings += portless_loopback(request.policy)

    async def open_way_out(on_event: OnEvent) -> WayOut:
        held = None
        if request.isolation == "docker":
            from agentbox.engine.agent_box import docker_backend

            held = await docker_backend(facilities).hold_network()
        return await Egress(dns_upstream).open(rules, on_event, named, held)

    return open_way_out


def _private(settings: Settings, directory: str) -> list[str]:
    """Directories that no grant may show: the key that signs, and other runs' state where the project is not in it."""
    both = {settings.state_directory(), usual_state_directory()}
    states = [state for state in both if not is_below(directory, os.path.realpath(state))]
    # Contents that this policy may not show.
    return [settings.trace_key_dir(), f"{directory}/{CHECKPOINTS}", *states]


def make_store(directory: str) -> None:
    """Make the directory of a project's checkpoints. Raises CheckpointError."""
    from agentbox.workspace.checkpoint_store import CheckpointStore

    CheckpointStore(directory).make()


def _links(policy: AnyPolicy, confinement: Confinement) -> list[FileGrant]:
    """Grants of links that a rule names: a program that uses the rule's own name must find something there."""
    known = {grant.path: grant for grant in confinement.files}
    found = []
    for rule in (rule for one in policies_of(policy) for rule in one.rules):
        target = rule.target
        if isinstance(target, PathTarget) and target.alias and not rule.deny and target.path in known:
            # The compiled grant is what every policy has in common.
            grant = known[target.path]
            if grant.present and grant.held_by is Layer.KERNEL and not target.pattern:
                found.append(replace(grant, path=target.alias))
    return found


def _egress_rules(policy: AnyPolicy) -> EgressRules | None:
    """The rules of the run's gateway; None where the policy opens nothing, and a box needs none."""
    if not any(rule.verb == "net" and not rule.deny for one in policies_of(policy) for rule in one.rules):
        return None
    from agentbox.egress.rules import EgressRules

    return EgressRules.of(policy) or None


__all__ = ["AgentOutcome", "AgentRequest", "TraceError", "run_agent"]
