# SPDX-License-Identifier: MIT
"""Containers that run an agent's command: the project at the host's own paths, as far as the policy grants it, in an
image."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
import tempfile

from agentbox.errors import BackendUnavailableError, ConfinementError, InvalidRequestError
from agentbox.isolation.backend import LiveBox
from agentbox.isolation.backends.docker import images
from agentbox.isolation.backends.docker.box import DockerBox, Shown
from agentbox.isolation.backends.docker.durable_ground import PREFIX, mapped
from agentbox.isolation.backends.docker.ground import ALONE, STAT, TERMINAL, Ground
from agentbox.isolation.backends.docker.live import GvisorContainer
from agentbox.isolation.host import view as host_view
from agentbox.isolation.interpreters import is_visible
from agentbox.linux import mounts, namespaces
from agentbox.linux.cgroup_owners import owner_name
from agentbox.linux.cgroup_strays import remove_strays
from agentbox.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbox.isolation.backends.docker.backend import DockerBackend
    from agentbox.isolation.network import Network
    from agentbox.isolation.plan import LaunchPlan
    from agentbox.models import Confinement

    Bind = tuple[str, str, bool]

_ETC = "/etc/"


async def build_agent(
    backend: DockerBackend,
    plan_for: Callable[[int, int], LaunchPlan],
    confinement: Confinement,
    network: Network | None,
    command: str,
) -> tuple[LiveBox, str]:
    """The box of the plan that `plan_for` makes for a user and group of those ids, and the path of the command's
    program in it; a `command` without a slash is the image's. Raises IsolationError, InvalidRequestError; nothing is
    left then."""
    daemon, facilities = backend.daemon, backend.facilities
    if not backend.guards:
        raise BackendUnavailableError(
            f"the runtime {daemon.options.runtime} shows no socket of the host, so no guard could say what is done",
            hint="add --host-uds=open (older releases: --fsgofer-host-uds) to the runtime's arguments in daemon.json, "
            "or use --isolation gvisor",
        )
    await backend.sweep()
    image = await daemon.default_image()
    uid, gid = facilities.ids.take()
    plan = plan_for(uid, gid)
    # Its name says whose it is, when nobody else can any more.
    directory = f"{tempfile.mkdtemp(prefix=PREFIX)}/{owner_name()}"
    os.mkdir(directory)
    ground, cgroup, box = None, None, None
    try:
        program, loads = await _program(backend, image, command, str((plan.command or {}).get("exe", "")))
        if not loads:
            raise ConfinementError(
                f"nothing keeps {program} from starting programs in a container: it is linked statically",
                hint="name an interpreter that is linked dynamically, or use the jail",
                step="exec rules",
                errno=0,
            )
        loaded = (STAT, ALONE) if backend.own_kernel else (ALONE,)
        process = daemon.process()
        ground = await asyncio.to_thread(Ground, directory, confinement.limits, uid, gid, daemon=process, loaded=loaded)
        binds = await asyncio.to_thread(_Lending(ground, directory, uid, process).binds, plan)
        cgroup = await backend.group(confinement.limits)
        box = DockerBox(
            daemon.engine, f"agentbox-{secrets.token_hex(8)}", Shown(plan.workspace, True, uid, gid), ground
        )
        box.unix_listeners = backend.listeners(network, ground)
        box.channel = ground.listen(plan.channel)
        if not backend.own_kernel:
            # gVisor's terminals are its own, and cannot be handed over.
            box.terminal = ground.listen(TERMINAL)
        for path, text in plan.files:
            if not path.startswith(_ETC):
                ground.show_text(path, text)
        container = backend.container(image, confinement.limits, cgroup, (uid, gid), network)
        own = [bind for bind in ground.binds() if bind[1] != "/work"]
        await box.create(replace(container, directory=plan.workspace, binds=(*own, *binds)))
    except BaseException:
        if box is not None:
            await box.destroy()
        elif ground is not None:
            await asyncio.to_thread(ground.clear)
        if cgroup is not None:
            await asyncio.to_thread(cgroup.destroy)
        facilities.ids.give_back(uid)
        _remove(directory)
        raise
    group = cgroup.nested_path() if cgroup is not None else None

    def on_gone() -> None:
        facilities.ids.give_back(uid)
        _remove(directory)
        if group is not None:
            remove_strays(group)

    kind = GvisorContainer if backend.own_kernel else LiveBox
    return kind(box, confinement, cgroup, on_gone), program


class _Lending:
    """The mounts of what a policy lends of the host."""

    def __init__(self, ground: Ground, directory: str, uid: int, daemon: int | None) -> None:
        self._ground = ground
        self._directory = directory
        self._uid = uid
        self._daemon = daemon
        self._count = 0

    def binds(self, plan: LaunchPlan) -> tuple[Bind, ...]:
        """(source, target, writable) of everything. Raises ConfinementError."""
        base = {path for path, _ in host_view().top}
        try:
            home = [path for path, _ in plan.writable if path not in ("/tmp", "/dev/shm")]  # noqa: S108 - the box's
            found = [(self._ground.own_directory(f"home-{at}", self._uid), path, True) for at, path in enumerate(home)]
            for source, target in plan.binds:
                # The image has its own.
                if target not in base and not target.startswith(_ETC):
                    found.append((self._lend(source), target, False))
            sources = dict(plan.sources)
            for path, writable in plan.grants:
                found.append((self._lend(sources.get(path, path)), path, writable))
            for path in plan.hidden:
                with contextlib.suppress(FileNotFoundError):
                    kind = os.lstat(path).st_mode
                    if not stat.S_ISLNK(kind):
                        found.append((self._ground.nothing(directory=stat.S_ISDIR(kind)), path, False))
        except OSError as error:
            raise ConfinementError(
                f"what the policy lends cannot be shown to a container: {error.strerror}",
                hint="its file system must know id-mapped mounts (ext4, xfs, btrfs, tmpfs)",
                step="lend files",
                errno=error.errno or 0,
            ) from error
        return tuple(found)

    def _lend(self, path: str) -> str:
        """A place where a file or directory of the host is mounted for the box's user."""
        if self._daemon is None or os.geteuid() != 0:
            return path
        self._count += 1
        name = f"lent-{self._count}"
        self._ground.stand_in(name, directory=os.path.isdir(path))
        tree = mapped(path, self._uid)
        try:
            point = f"{self._directory}/{name}"
            namespaces.with_mounts_of(self._daemon, lambda: mounts.attach(tree, point))
        finally:
            os.close(tree)
        return point


async def _program(backend: DockerBackend, image: str, command: str, on_host: str) -> tuple[str, bool]:
    """The path of the command's program in the container, and whether it loads what it is told to."""
    if "/" not in command or is_visible(on_host):
        path, loads = await images.find(backend.daemon, image, command if "/" not in command else on_host)
        if not path:
            raise InvalidRequestError(
                f"image {image} has no program {command!r}",
                hint="give the path of one that a rule lends, or name another image",
            )
        return path, loads

    def loads_on_host() -> bool:
        try:
            with open(on_host, "rb") as file:
                head = file.read(images.HEAD_BYTES)
        except OSError:
            return False
        # A script's interpreter is the image's, which loads them or does not start.
        return head[:2] == b"#!" or images.is_dynamic(head)

    return command, await asyncio.to_thread(loads_on_host)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            path = f"{directory}/{name}"
            (os.rmdir if os.path.isdir(path) else os.unlink)(path)
        os.rmdir(directory)
        os.rmdir(os.path.dirname(directory))
