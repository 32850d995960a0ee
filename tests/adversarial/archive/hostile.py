# SPDX-License-Identifier: MIT
"""Makes hostile archives: through the standard library where it can, block by block where it will not."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable

FILE, LINK, HARD, DIRECTORY = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes = FILE,
    link: str = "",
    data: bytes = b"",
    mode: int = 0o644,
    pax: dict[str, str] | None = None,
) -> None:
    """Add one member as it is told, without a look at the disk."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), mode
    info.pax_headers = pax or {}
    archive.addfile(info, io.BytesIO(data) if data else None)


def made(build: Callable[[tarfile.TarFile], object], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A packed archive with the members that `build` adds."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        build(archive)
    return gzip.compress(out.getvalue(), 1, mtime=0)


def header(
    name: bytes = b"f",
    kind: bytes = b"0",
    size: int | bytes = 0,
    link: bytes = b"",
    *,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    """One header block. `size` as bytes is the raw field."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    block = bytearray(name.ljust(100, b"\0")[:100] + b"0000644\0" + b"0000000\0" * 2 + field.ljust(12, b"\0"))
    block += b"00000000000\0" + b" " * 8 + kind + link.ljust(100, b"\0")[:100] + magic + bytes(64 + 16)
    block += prefix.ljust(155, b"\0")
    block = block.ljust(512, b"\0")
    block[148:156] = b"%06o\0 " % (sum(block) if checksum is None else checksum)
    return bytes(block)


def record(key: bytes, value: bytes) -> bytes:
    """One pax record."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return str(length).encode() + body


def extended(body: bytes, kind: bytes = b"x") -> bytes:
    """A pax header with its body."""
    return header(b"pax", kind, len(body)) + body + bytes(-len(body) % 512)


def packed(*blocks: bytes, end: bytes = bytes(1024)) -> bytes:
    """A gzip file of these blocks and the end of an archive."""
    return gzip.compress(b"".join(blocks) + end, 1, mtime=0)
