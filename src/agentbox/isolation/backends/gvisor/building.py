# SPDX-License-Identifier: MIT
"""From the plan of a box as the jail's to a live one with gVisor's kernel."""

from __future__ import annotations

from agentbox.errors import ConfinementError
from agentbox.isolation.backend import build_in_cgroup
from agentbox.isolation.backends.gvisor import planning
from agentbox.isolation.backends.gvisor.ids import BoxIds
from agentbox.isolation.backends.gvisor.live import GvisorLiveBox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentbox.isolation.facilities import Facilities
    from agentbox.isolation.network import Network
    from agentbox.isolation.plan import LaunchPlan
    from agentbox.models import Confinement

    OnReport = Callable[[dict[str, Any]], None]


async def build(
    facilities: Facilities,
    plan_for: Callable[[int], LaunchPlan],
    confinement: Confinement,
    *,
    network: Network | None = None,
    capabilities: int = 0,
) -> GvisorLiveBox:
    """The box of the plan that `plan_for` makes for a user of that id on the host. `capabilities` are those of its
    programs. Under a policy no program of it starts another. Raises IsolationError; nothing is left then."""
    ids = BoxIds(facilities)
    try:
        plan = planning.gvisor_plan(
            plan_for(ids.user),
            confinement.limits,
            ids.all,
            joins_network=network is not None,
            alone=confinement.policy_sha256 is not None,
            capabilities=capabilities,
        )
        box = await build_in_cgroup(
            facilities,
            plan,
            confinement,
            ids.give_back,
            network=network,
            limits=planning.group_limits(confinement.limits),
            kind=GvisorLiveBox,
        )
    except BaseException:
        ids.give_back()
        raise
    assert isinstance(box, GvisorLiveBox)
    box.count_anew()
    return box


async def seen(box: GvisorLiveBox, on_report: OnReport, *, everything: bool) -> GvisorLiveBox:
    """The same box, whose programs' doings are handed on. Raises ConfinementError; it is destroyed then."""
    try:
        await box.be_seen(on_report, everything=everything)
    except BaseException:
        await box.destroy()
        raise
    return box


def refusal(confinement: Confinement) -> str:
    """Why a policy cannot be held, naming the rule; empty where it can."""
    granted = next((rule for rules in confinement.programs for rule in rules if not rule.deny), None)
    if granted is None:
        return ""
    return (
        f"`{granted.rule}` cannot be held by backend gvisor: its kernel can keep a program from starting others, and "
        "cannot tell which"
    )


def must_load(program: str) -> None:
    """Raise ConfinementError for a program into which nothing can be loaded that keeps it from starting others."""
    try:
        loads = planning.is_dynamic(program)
    except OSError:
        # That it cannot be executed is said when it is.
        return
    if not loads:
        raise ConfinementError(
            f"{program} is linked statically: gVisor cannot keep it from starting programs",
            hint="use another interpreter, or the jail",
            step="exec rules",
            errno=0,
        )
