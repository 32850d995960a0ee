# SPDX-License-Identifier: MIT
"""Checkpoint and seal records: what they state about everything before them, and the signature over them."""

from __future__ import annotations

import binascii

from agentbox.records import asdict, dataclass
from agentbox.trace.canonical import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from agentbox.trace.keys import PublicKey, SigningKey

_PREFIX = b"agentbox trace 2\n"
_MEMBERS = frozenset({"run", "policy_sha256", "key", "count", "head", "root", "sig"})


@dataclass(frozen=True, slots=True)
class Claim:
    """`count` records stand before, the last of which has the hash `head`; `root` is their Merkle root."""

    run: str
    policy_sha256: str
    key: str
    count: int
    head: str
    root: str

    def args(self) -> dict[str, Any]:
        """The arguments of the record, without the signature."""
        return asdict(self)


def claim_of(args: Mapping[str, Any]) -> Claim | None:
    """What a checkpoint or seal record states; None when it is not formed like one."""
    if args.keys() != _MEMBERS or type(args["count"]) is not int:
        return None
    if not all(isinstance(args[name], str) for name in _MEMBERS - {"count"}):
        return None
    return Claim(args["run"], args["policy_sha256"], args["key"], args["count"], args["head"], args["root"])


def message(fields: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: the record without its hash and without the signature."""
    signed = {name: value for name, value in fields.items() if name != "sha"}
    signed["args"] = {name: value for name, value in fields["args"].items() if name != "sig"}
    return _PREFIX + dumps(signed).encode()


def sign(fields: Mapping[str, Any], key: SigningKey) -> str:
    """The signature over a record, as its `sig` states it. Raises TraceKeyError."""
    return binascii.b2a_base64(key.sign(message(fields)), newline=False).decode()


def is_signed_by(fields: Mapping[str, Any], key: PublicKey) -> bool:
    """Whether the record carries this key's signature."""
    try:
        signature = binascii.a2b_base64(fields["args"]["sig"], strict_mode=True)
    except (binascii.Error, ValueError):
        return False
    return key.verifies(signature, message(fields))
