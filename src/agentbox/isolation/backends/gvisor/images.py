# SPDX-License-Identifier: MIT
"""Images that gVisor boxes can be made of in place of the host's programs: `STATE/images/NAME/rootfs`, read-only."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess

from agentbox.errors import ConfigError, ConfinementError
from agentbox.isolation.plan import HostView
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.plan import LaunchPlan

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")
_UNPACK_SECONDS = 600
# What every box has of its own, and what is nobody's business.
_NOT_SHOWN = frozenset(
    ("boot", "dev", "etc", "lost+found", "media", "mnt", "proc", "root", "run", "sys", "tmp", "work", ".agentbox")
)
_NOT_SHOWN_OF_ETC = frozenset(
    ("passwd", "passwd-", "group", "group-", "shadow", "shadow-", "gshadow", "gshadow-", "hosts", "hostname",
     "resolv.conf", "nsswitch.conf", "ld.so.preload", "mtab")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image: `rootfs` is a directory of the host."""

    name: str
    rootfs: str


def find(directory: str, name: str) -> Image:
    """The image of that name below `directory`. Raises ConfinementError with the way to get it."""
    image = Image(name, _place(directory, name))
    if not os.path.isdir(image.rootfs):
        raise ConfinementError(
            f"there is no image {name!r} for gVisor boxes",
            hint=f"`agentbox image import --gvisor --name {name} TARBALL` unpacks one",
            step="image",
            errno=2,
        )
    return image


def unpack(directory: str, name: str, tarball: str) -> Image:
    """Unpack a tar file of a root file system, in place of an image of that name. Takes a minute. Raises ConfigError;
    the image before is there still then."""
    rootfs = _place(directory, name)
    home = os.path.dirname(rootfs)
    made = f"{home}/.new-{secrets.token_hex(6)}"
    tar = shutil.which("tar")
    try:
        if tar is None:
            raise ConfigError("tar is not installed", hint="install it: images are tar files")
        os.makedirs(made, mode=0o755)
        done = subprocess.run(
            [tar, "--extract", "--numeric-owner", "--same-owner", "--preserve-permissions", "--exclude=./dev/*",
             "--exclude=dev/*", "--file", os.path.abspath(tarball), "--directory", made],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_UNPACK_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ConfigError(f"{tarball} cannot be unpacked: {done.stderr.strip()[-500:]}", hint="is it a tar file?")
        if not os.path.isdir(f"{made}/usr"):
            raise ConfigError(f"{tarball} holds no root file system: it has no /usr", hint="export one, or build one")
        if os.path.isdir(rootfs):
            os.rename(rootfs, f"{made}.old")
        os.rename(made, rootfs)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the image {name} cannot be made: {error}", hint="look at the state directory") from error
    finally:
        for left in (made, f"{made}.old"):
            shutil.rmtree(left, ignore_errors=True)
    return Image(name, rootfs)


def view(image: Image) -> HostView:
    """What of an image a plan depends on, in place of the host's own layout. No link of it is followed."""
    top: list[tuple[str, str | None]] = []
    for name in sorted(os.listdir(image.rootfs)):
        path = f"{image.rootfs}/{name}"
        if name in _NOT_SHOWN:
            continue
        if os.path.islink(path):
            top.append((f"/{name}", os.readlink(path)))
        elif os.path.isdir(path):
            top.append((f"/{name}", None))
    names = [name for name in _etc(image) if not os.path.islink(f"{image.rootfs}/etc/{name}")]
    return HostView(tuple(top), tuple(names))


def shown(plan: LaunchPlan, image: Image) -> LaunchPlan:
    """A plan that was made with `view`, with the image's files in place of the host's."""
    links = [
        (f"/etc/{name}", os.readlink(f"{image.rootfs}/etc/{name}"))
        for name in _etc(image)
        if os.path.islink(f"{image.rootfs}/etc/{name}")
    ]
    return replace(
        plan,
        binds=tuple((f"{image.rootfs}{source}", target) for source, target in plan.binds),
        links=(*plan.links, *links),
    )


def _etc(image: Image) -> list[str]:
    try:
        names = os.listdir(f"{image.rootfs}/etc")
    except OSError:
        return []
    return sorted(set(names) - _NOT_SHOWN_OF_ETC)


def _place(directory: str, name: str) -> str:
    if not _NAME.match(name) or ".." in name:
        raise ConfigError(f"{name!r} is no name of an image", hint="use letters, digits, and . _ - : /")
    return f"{directory}/{name.replace('/', '_').replace(':', '_')}/rootfs"
