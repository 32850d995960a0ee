# SPDX-License-Identifier: MIT
"""SHA-256. The standard library's `hashlib` loads OpenSSL, which takes longer than hashing what a short run records,
and pays after some thousands of records; use `digests.sha256`, which may change."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hashlib import sha256
else:
    # The first is of CPython 3.12 and later.
    for _name in ("_sha2", "_sha256", "hashlib"):
        try:
            sha256 = __import__(_name).sha256
        except ImportError:
            continue
        break


def use_the_fastest() -> None:
    """Load OpenSSL's, which hashes a record in half the time."""
    try:
        # What `hashlib` hands on, without what else it loads.
        from _hashlib import openssl_sha256 as fastest

        fastest()
    except (ImportError, ValueError):
        from hashlib import sha256 as fastest
    globals()["sha256"] = fastest


__all__ = ["sha256", "use_the_fastest"]
