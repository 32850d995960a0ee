# SPDX-License-Identifier: MIT
"""Loop devices: a file as a block device, which goes when nothing uses it any more. Calls raise OSError."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

_CONTROL = "/dev/loop-control"
_GET_FREE = 0x4C82
_CONFIGURE = 0x4C0A
_SET_CAPACITY = 0x4C07
_AUTOCLEAR = 4
_DIRECT_IO = 16
_MAJOR = 7
_BLOCK_BYTES = 4096
_TRIES = 16
# struct loop_config: descriptor, block size, struct loop_info64 with its flags at 52 (232 bytes), reserved.
_CONFIG = struct.Struct("=II52xI176x64x")


def attach(file: int, *, direct: bool = True) -> tuple[int, str]:
    """Show an open file as a device: a descriptor of it, and its path. The device goes with the last that has it open
    or mounted. `direct` passes the host's cache by, where the file system can do that."""
    for _ in range(_TRIES):
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            number = fcntl.ioctl(control, _GET_FREE)
        finally:
            os.close(control)
        path = f"/dev/loop{number}"
        device = _open(path, number)
        try:
            _configure(device, file, _AUTOCLEAR | (_DIRECT_IO if direct else 0))
            return device, path
        except OSError as error:
            os.close(device)
            # Somebody else has taken it.
            if error.errno != errno.EBUSY:
                raise
        except BaseException:
            os.close(device)
            raise
    raise OSError(errno.EBUSY, "every loop device is taken at once")


def _configure(device: int, file: int, flags: int) -> None:
    try:
        fcntl.ioctl(device, _CONFIGURE, bytearray(_CONFIG.pack(file, _BLOCK_BYTES, flags)))
    except OSError as error:
        if error.errno != errno.EINVAL or not flags & _DIRECT_IO:
            raise
        fcntl.ioctl(device, _CONFIGURE, bytearray(_CONFIG.pack(file, _BLOCK_BYTES, flags & ~_DIRECT_IO)))


def _open(path: str, number: int) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        # A container's /dev does not follow the kernel's.
        os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_MAJOR, number))
        return os.open(path, flags)


def of_file(path: str) -> str | None:
    """The device that shows that file already, None where there is none."""
    wanted = os.stat(path)
    for name in os.listdir("/sys/block"):
        if not name.startswith("loop"):
            continue
        try:
            with open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8", errors="surrogateescape") as file:
                backing = file.read().rstrip("\n")
            found = os.stat(backing)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
            return f"/dev/{name}"
    return None


def grow(device: int) -> None:
    """Take notice that the file has grown."""
    fcntl.ioctl(device, _SET_CAPACITY)
