# SPDX-License-Identifier: MIT
"""Files that a box's own kernel did not let a program have, where that is what the policy says too.

Only a witness that tells how a call ended, as gVisor's does, can say so of a program without a guard. What the policy
allows, and a file's own mode does not, is no denial; nor is what is not there for anybody.
"""

from __future__ import annotations

import os

from agentbox.policy.evaluation import decide
from agentbox.policy.questions import Read, Write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.policy.document import AnyPolicy

_REFUSED = ("EACCES", "EPERM", "EROFS")
_ABSENT = "ENOENT"
# Of every kernel its own.
_OWN = ("/proc", "/sys", "/dev")


def record_of(report: Mapping[str, Any], policy: AnyPolicy) -> tuple[str, dict[str, Any]] | None:
    """Operation and arguments of the denial that a witnessed call was, None where it was none. `report` has `op` (of
    opening a file or connecting), `path` as the program named it, made absolute, and `error` of one that failed. Looks
    whether the host has a file that the box did not show."""
    error, path = report.get("error"), report.get("path", "")
    if error not in (*_REFUSED, _ABSENT) or report["op"] not in ("open_read", "open_write"):
        return None
    if not path.startswith("/") or path.startswith(tuple(f"{own}/" for own in _OWN)):
        return None
    op = "write" if report["op"] == "open_write" else "read"
    verdict = decide(policy, Write(path) if op == "write" else Read(path))
    if verdict.allowed or (error == _ABSENT and not _is_there(path)):
        return None
    reason = "the box does not show it" if error == _ABSENT else verdict.reason
    rule = {"rule": verdict.rule.text} if verdict.rule else {}
    return op, {"target": path, "enforced": True, "error": error, "reason": reason, **rule}


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False
