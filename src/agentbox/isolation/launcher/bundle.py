# SPDX-License-Identifier: MIT
"""A box's plan -> the OCI configuration of its bundle. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "box"
NOBODY = 65534
# Who boxes have beside their root.
ORDINARY = 1000
# What belongs to that one on the host's disk, for whichever box comes next: nobody else has this id.
ORDINARY_ON_DISK = 1_900_000_000 - 1
INSIDE = "/.agentbox/inside"


def bundle_of(plan: dict[str, Any]) -> dict[str, Any]:
    """What runsc is to run: a first process of ours without any capability, the guest's root read-only, and what may be
    written mounted over it. What below those is read-only all the same, the host's own mounts say."""
    changes = plan["runtime"]["changes"]
    # For whom everything can be written, files may belong to anybody: not so in the host's file systems, where an id
    # that the box does not have cannot own any.
    scratch = plan["writable"] if changes else []
    writable = [] if changes else [path for path, _ in plan["writable"]]
    writable += [path for path, granted in plan["grants"] if granted]
    writable += [target for _, target in plan["lent"]]
    writable += [target for _, _, target, granted in plan["parts"] if granted]
    if plan["staged"]:
        writable.append(plan["workspace"])
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            # Nobody's: not even the box's root may signal it without the right to signal everybody.
            "user": {"uid": NOBODY, "gid": NOBODY},
            "args": [INSIDE, "init"],
            "env": [],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": True,
            "rlimits": [
                {"type": f"RLIMIT_{name}", "hard": value, "soft": value} for name, value in plan["runtime"]["rlimits"]
            ],
        },
        "root": {"path": "/box", "readonly": not changes},
        "hostname": plan["hostname"],
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "nodev", "noexec"]},
            *(
                {"destination": path, "type": "bind", "source": f"/box{path}", "options": ["rw", "rbind", "nosuid"]}
                for path in _outermost(writable)
            ),
            *(_own_memory(path, mode, plan["disk_bytes"]) for path, mode in scratch),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
            # Where the namespace around it was made for the gateway, gVisor uses its sockets.
            + ([] if plan["runtime"]["network"] == "host" else [{"type": "network"}])
        },
    }


def _own_memory(path: str, mode: int, size: int) -> dict[str, Any]:
    options = ["rw", "nosuid", "nodev", f"mode={mode:o}", f"size={size}"]
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}


def _outermost(paths: list[str]) -> list[str]:
    """Those that are not below another."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: (len(path), path)):
        if not any(path.startswith(above.rstrip("/") + "/") for above in kept):
            kept.append(path)
    return kept
