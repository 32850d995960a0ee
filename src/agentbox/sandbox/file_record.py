# SPDX-License-Identifier: MIT
"""What a trace says of one operation on a sandbox's files: the path, how many bytes, and of what is not long their
hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Operation and arguments.
Note = Callable[[str, Mapping[str, Any]], None]
MAX_HASHED_BYTES = 16 << 20


class FileRecord:
    """Bytes that pass, counted; hashed for as long as there are few."""

    def __init__(self) -> None:
        self._bytes = 0
        self._hash: Any = hashlib.sha256()
        self._facts: dict[str, Any] = {}

    def passed(self, data: bytes | memoryview) -> None:
        """Some of them went by."""
        self._bytes += len(data)
        if self._hash is not None:
            if self._bytes > MAX_HASHED_BYTES:
                self._hash = None
            else:
                self._hash.update(data)

    def found(self, **facts: Any) -> None:
        """Something else to be told."""
        self._facts |= facts

    def args(self) -> dict[str, Any]:
        """Everything that is known."""
        facts = dict(self._facts)
        if self._bytes:
            facts["bytes"] = self._bytes
            if self._hash is not None:
                facts["sha256"] = self._hash.hexdigest()
        return facts


@contextmanager
def recorded(note: Note, op: str, args: Mapping[str, Any]) -> Iterator[FileRecord]:
    """Record an operation when it is done, whether it worked or not."""
    record = FileRecord()
    told = {name: value for name, value in args.items() if value not in (None, "")}
    try:
        yield record
    except BaseException as error:
        errno = getattr(error, "errno", None)
        why = {"error": getattr(error, "strerror", None) or str(error) or type(error).__name__}
        note(op, {**told, **record.args(), **why, **({} if errno is None else {"errno": errno})})
        raise
    note(op, {**told, **record.args()})
