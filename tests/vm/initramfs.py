# SPDX-License-Identifier: MIT
"""Builds the initial RAM disk: the system's Python, the kernel modules for 9p, and guest_init.py as /init."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

PYTHON = Path("/usr/bin/python3")
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
_IMPORTS = "import ctypes, json, os, fcntl, socket, struct, encodings.ascii, encodings.latin_1, encodings.utf_8"
_LIST_FILES = (
    f"{_IMPORTS}, sys; print(*{{m.__spec__.origin for m in list(sys.modules.values())"
    " if getattr(m, '__spec__', None) and m.__spec__.origin and m.__spec__.origin.startswith('/')}, sep='\\n')"
)


def build(target: Path, modules: Path) -> None:
    """Write the RAM disk. `modules` is the directory of one kernel's modules (/lib/modules/RELEASE)."""
    init = (Path(__file__).with_name("guest_init.py")).read_text(encoding="utf-8")
    entries: dict[str, tuple[int, bytes]] = {"init": (0o755, b"#!/usr/bin/python3 -ISB\n" + init.encode())}
    for number, module in enumerate(_in_load_order(modules)):
        name = f"modules/{number:02}-{module.name.partition('.')[0]}.ko"
        entries[name] = (0o644, _decompressed(module))
    for path in _python_files():
        entries[str(path).lstrip("/")] = (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
    entries["usr/bin/python3"] = (0o755, PYTHON.resolve().read_bytes())
    temporary = target.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(gzip.compress(b"".join(_archive(entries)), 1))
    temporary.rename(target)


def _python_files() -> set[Path]:
    output = subprocess.run([PYTHON, "-ISBc", _LIST_FILES], check=True, capture_output=True, text=True).stdout
    files = {Path(line) for line in output.splitlines()}
    libraries = {found for path in (PYTHON, *(f for f in files if ".so" in f.name)) for found in _libraries(path)}
    # The interpreter finds its library directory by the landmark os.py, where os itself is frozen and has no file.
    landmark = subprocess.run(
        [PYTHON, "-ISc", "import sysconfig; print(sysconfig.get_path('stdlib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    extra = {Path(landmark, name) for name in ("os.py", "codecs.py", "io.py", "abc.py", "stat.py", "posixpath.py")}
    extra |= {Path(landmark, name) for name in ("genericpath.py", "_collections_abc.py", "site.py")}
    return files | libraries | extra


def _libraries(path: Path) -> Iterator[Path]:
    output = subprocess.run(["ldd", path], check=False, capture_output=True, text=True).stdout
    for found in re.findall(r"(/\S+) \(0x", output):
        yield Path(found)


def _in_load_order(modules: Path) -> list[Path]:
    """Return the module files, each after what it depends on; one built into the kernel has no file."""
    found = {path.name.partition(".")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = found.get(name.replace("-", "_"))
        if path is None or path in order:
            return
        needs = re.search(rb"\0depends=([^\0]*)\0", _decompressed(path))
        for need in filter(None, needs[1].decode().split(",") if needs else []):
            add(need)
        order.append(path)

    for module in MODULES:
        add(module)
    return order


def _decompressed(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq", path], check=True, capture_output=True).stdout
    return path.read_bytes()


def _archive(entries: dict[str, tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield a cpio archive in the "newc" form."""
    directories = sorted({str(parent) for name in entries for parent in Path(name).parents} - {"."})
    names: Iterable[tuple[str, int, bytes]] = [
        *((name, stat.S_IFDIR | 0o755, b"") for name in directories),
        *((name, stat.S_IFREG | mode, data) for name, (mode, data) in entries.items()),
        ("TRAILER!!!", 0, b""),
    ]
    for number, (name, mode, data) in enumerate(names, 1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        yield header + b"\0" * (-len(header) % 4) + data + b"\0" * (-len(data) % 4)
