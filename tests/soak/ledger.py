# SPDX-License-Identifier: MIT
"""What a workspace must hold, kept by whoever has it changed; compared with the files on the host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

# What an agent writes before it takes the place of a file; one that is killed cannot take it away.
_HALF_WRITTEN = ".agentbox-"


class Ledger:
    """Paths relative to the workspace, and the SHA-256 of what each holds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, str] = {}
        # Those that a command was changing when it was ended.
        self._unsure: set[str] = set()

    def some(self, chance: random.Random) -> str | None:
        """A path whose content is known; None where there is none."""
        return chance.choice(sorted(self.files)) if self.files else None

    @contextlib.contextmanager
    def changing(self, *paths: str) -> Iterator[dict[str, bytes | None]]:
        """Around a command that changes those paths. The block fills in what they hold afterwards, None for nothing;
        where it is left by an exception, they may hold anything."""
        before = {path: self.files.pop(path) for path in paths if path in self.files}
        self._unsure |= set(paths)
        after: dict[str, bytes | None] = {}
        yield after
        self._unsure -= set(paths)
        self.files |= before
        for path, content in after.items():
            self.files.pop(path, None)
            if content is not None:
                self.files[path] = sha256(content)

    def faults(self) -> list[str]:
        """What is not as it should be on the host. What is unsure is taken as it is found."""
        there = dict(self._walk())
        found = [
            f"{path} {'has other content' if path in there else 'is lost'}"
            for path, digest in self.files.items()
            if there.get(path) != digest
        ]
        found += [f"{path} appeared" for path in there if path not in self.files and path not in self._unsure]
        for path in self._unsure:
            self.files.pop(path, None)
            if path in there:
                self.files[path] = there[path]
        self._unsure.clear()
        return found

    def _walk(self) -> Iterator[tuple[str, str]]:
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = Path(directory, name)
                if name.startswith(_HALF_WRITTEN):
                    continue
                yield str(path.relative_to(self.root)), sha256(path.read_bytes())


def sha256(content: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(content).hexdigest()
