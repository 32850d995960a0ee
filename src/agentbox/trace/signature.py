# SPDX-License-Identifier: MIT
"""What a checkpoint signs: everything that stands before it, the run and the policy that it belongs to."""

from __future__ import annotations

import base64
import binascii
from dataclasses import asdict, dataclass
from typing import Any

from agentbox.trace.canonical import dumps
from agentbox.trace.keys import PublicKey, SigningKey

_PREFIX = b"agentbox trace 2\n"


@dataclass(frozen=True, slots=True)
class Claim:
    """`count` records before the checkpoint, the last of which has the hash `head`; `root` is their Merkle root."""

    op: str
    run: str
    policy_sha256: str
    key: str
    count: int
    head: str
    root: str

    def message(self) -> bytes:
        """The bytes that are signed."""
        return _PREFIX + dumps(asdict(self)).encode()


def signed_args(claim: Claim, key: SigningKey) -> dict[str, Any]:
    """The arguments of a checkpoint or seal record."""
    stated = asdict(claim)
    del stated["op"]
    return {**stated, "sig": base64.b64encode(key.sign(claim.message())).decode()}


def claim_of(op: str, args: dict[str, Any]) -> Claim | None:
    """What a checkpoint or seal record claims; None when it is not formed like one."""
    texts = ("run", "policy_sha256", "key", "head", "root")
    if args.keys() != {*texts, "count", "sig"} or type(args["count"]) is not int:
        return None
    if not all(isinstance(args[name], str) for name in (*texts, "sig")):
        return None
    return Claim(op, args["run"], args["policy_sha256"], args["key"], args["count"], args["head"], args["root"])


def is_signed_by(claim: Claim, sig: str, key: PublicKey) -> bool:
    """Whether `sig` is this key's signature over the claim."""
    try:
        data = base64.b64decode(sig, validate=True)
    except (binascii.Error, ValueError):
        return False
    return key.verifies(data, claim.message())
