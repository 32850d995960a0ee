# SPDX-License-Identifier: MIT
"""Stored snapshots as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class SnapshotLike(Protocol):
    """What is known about one snapshot without unpacking it."""

    @property
    def snapshot_id(self) -> str:
        """The token that names it."""

    @property
    def created_at(self) -> float:
        """Seconds since 1970, UTC."""

    @property
    def packed_bytes(self) -> int:
        """Size of the archive."""

    @property
    def unpacked_bytes(self) -> int | None:
        """Size of the files, where it is known."""

    @property
    def entries(self) -> int | None:
        """Files, folders and links, where it is known."""


class SnapshotCatalogue(Protocol):
    """What the API does with a snapshot store. Ids that do not exist for the owner raise NotFoundError."""

    def list(self, owner: str) -> Sequence[SnapshotLike]:
        """The owner's snapshots."""

    def get(self, owner: str, snapshot_id: str) -> SnapshotLike:
        """One snapshot."""

    def delete(self, owner: str, snapshot_id: str) -> None:
        """Remove it."""


def snapshot_body(info: SnapshotLike) -> dict[str, Any]:
    """JSON of a snapshot; `created_at` is in seconds since 1970, UTC."""
    return {
        "snapshot_id": info.snapshot_id,
        "created_at": info.created_at,
        "packed_bytes": info.packed_bytes,
        "unpacked_bytes": info.unpacked_bytes,
        "entries": info.entries,
    }
