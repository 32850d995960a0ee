# SPDX-License-Identifier: MIT
"""`agentbox` with boxes that have no exec judge: what a start costs without it. Only benchmarks/policy.py runs this."""

from __future__ import annotations

from typing import Any

import agentbox.engine.agent_box as agent_box
from agentbox.cli.main import main
from agentbox.isolation.plan import LaunchPlan
from agentbox.records import replace

_planned = agent_box.agent_plan


def _without_judge(*arguments: Any, **named: Any) -> LaunchPlan:
    return replace(_planned(*arguments, **named), judge=False)


if __name__ == "__main__":
    agent_box.agent_plan = _without_judge
    main()
