# SPDX-License-Identifier: MIT
"""What a container of ours is, as the engine's API wants it said. Pure."""

from __future__ import annotations

from agentbox.isolation.plan import PROC_MASKED_DIRECTORIES, PROC_MASKED_FILES, PROC_READ_ONLY
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

LABEL_OWNER = "agentbox.owner"
LABEL_STARTED = "agentbox.started"
LABEL_KIND = "agentbox.kind"
LABEL_NAME = "agentbox.name"
# A directory of the host that goes with the container.
LABEL_PLACE = "agentbox.place"
# The state directory of who takes the container up again when its owner has died.
LABEL_KEEPER = "agentbox.keeper"
# What a box of `user="root"` may do with files and ids of its own; nothing of it reaches the host's.
ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
_OPEN_FILES = 4096
_MIB = 1 << 20
_MASKED = (*PROC_MASKED_FILES, *PROC_MASKED_DIRECTORIES, "/sys/firmware", "/sys/devices/virtual/powercap")


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `binds` are (source, target, writable); `tmpfs` are (target, options). `user` is `uid:gid`.

    `memory_bytes`, `pids` and `cpus` are None where a control group of ours, `cgroup_parent`, holds them. `processes`
    is the limit that a kernel of the box's own counts by. `network` is the container whose network it shares, where it
    has none of its own.
    """

    image: str
    command: tuple[str, ...]
    user: str
    directory: str
    labels: Mapping[str, str]
    runtime: str
    binds: tuple[tuple[str, str, bool], ...] = ()
    tmpfs: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    read_only: bool = True
    cgroup_parent: str | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    processes: int | None = None
    name_server: str | None = None
    network: str = ""
    hostname: str = "box"


def request_of(container: Container) -> dict[str, Any]:
    """The body of the call that creates it."""
    host: dict[str, Any] = {
        "Runtime": container.runtime,
        "NetworkMode": f"container:{container.network}" if container.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(container.capabilities),
        "SecurityOpt": ["no-new-privileges:true"],
        "ReadonlyRootfs": container.read_only,
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}
            for source, target, writable in container.binds
        ],
        "Tmpfs": dict(container.tmpfs),
        "MaskedPaths": list(_MASKED),
        "ReadonlyPaths": list(PROC_READ_ONLY),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "OomScoreAdj": 500,
        "Ulimits": _ulimits(container),
    }
    if not container.network:
        # The engine lets everybody in a network of its own make ping sockets.
        host["Sysctls"] = {"net.ipv4.ping_group_range": "1 0"}
    if container.name_server is not None:
        host["Dns"] = [container.name_server]
    if container.cgroup_parent is not None:
        host["CgroupParent"] = container.cgroup_parent
    if container.memory_bytes is not None:
        host |= {"Memory": container.memory_bytes, "MemorySwap": container.memory_bytes}
    if container.pids is not None:
        host["PidsLimit"] = container.pids
    if container.cpus is not None:
        host |= {"CpuPeriod": 100_000, "CpuQuota": max(1000, round(container.cpus * 100_000))}
    return {
        "Image": container.image,
        "Entrypoint": list(container.command),
        "Cmd": [],
        "User": container.user,
        "WorkingDir": container.directory,
        "Env": list(container.environment),
        "Labels": dict(container.labels),
        # A container in another one's network has that one's name.
        **({} if container.network else {"Hostname": container.hostname}),
        "NetworkDisabled": False,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "HostConfig": host,
    }


def _ulimits(container: Container) -> Sequence[dict[str, Any]]:
    limits = {"nofile": _OPEN_FILES, "core": 0, "memlock": 8 * _MIB}
    if container.processes is not None:
        limits["nproc"] = container.processes
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()]
