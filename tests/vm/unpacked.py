# SPDX-License-Identifier: MIT
"""The kernel without its packing: an emulated machine takes longer to unpack it than to start it."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

_XZ, _ELF = b"\xfd7zXZ\0", b"\x7fELF"
# The note of type 18 (XEN_ELFNOTE_PHYS32_ENTRY) says where a machine enters a kernel that it loaded unpacked.
_ENTRY = b"\x12\0\0\0Xen\0"


def image(packed: Path, directory: Path) -> Path:
    """Return the unpacked kernel, kept in `directory`; the packed one where it is packed or entered in another way."""
    status = packed.stat()
    target = directory / f"vmlinux-{packed.name}-{status.st_size}-{status.st_mtime_ns}"
    if target.exists():
        return target
    data = packed.read_bytes()
    try:
        content = lzma.LZMADecompressor().decompress(data[data.index(_XZ) :])
    except (ValueError, lzma.LZMAError):
        return packed
    if not content.startswith(_ELF) or _ENTRY not in content:
        return packed
    for old in directory.glob("vmlinux-*"):
        old.unlink(missing_ok=True)
    temporary = directory / f"unpacked.{os.getpid()}"
    temporary.write_bytes(content)
    temporary.rename(target)
    return target
