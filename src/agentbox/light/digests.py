# SPDX-License-Identifier: MIT
"""SHA-256. The standard library's `hashlib` loads OpenSSL, which takes longer than hashing what a short run records,
and pays after some thousands of records; use `digests.sha256`, which may change."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        from _sha2 import sha256  # CPython 3.12
    except ImportError:
        try:
            from _sha256 import sha256
        except ImportError:
            from hashlib import sha256


def use_the_fastest() -> None:
    """Load OpenSSL's, which hashes a record in half the time."""
    import hashlib

    globals()["sha256"] = hashlib.sha256


__all__ = ["sha256", "use_the_fastest"]
