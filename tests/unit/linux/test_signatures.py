# SPDX-License-Identifier: MIT
"""The OpenSSL of the interpreter accepts the signatures that `cryptography` makes, and no others."""

from __future__ import annotations

import _hashlib
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentbox.linux.signatures import surely_made
from agentbox.trace.keys import PublicKey
from tests.conftest import not_here

KEY = Ed25519PrivateKey.from_private_bytes(b"\7" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
# RFC 8032, 7.1, the second test.
RFC_PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)

_FOUND_BY_OPENSSL = """
import _hashlib, sys
from agentbox.trace.keys import PublicKey
public, signature, message = map(bytes.fromhex, sys.argv[1:])
assert PublicKey(public).verifies(signature, message)
print("cryptography" in sys.modules)
changed = bytes([signature[0] ^ 1]) + signature[1:]
assert not PublicKey(public).verifies(changed, message)
assert not PublicKey(b"\\2" * 32).verifies(signature, message)
"""


def test_openssl_says_what_the_standard_says() -> None:
    assert _hashlib.openssl_sha256
    if not surely_made(RFC_PUBLIC, RFC_SIGNATURE, b"\x72"):
        not_here("this interpreter's OpenSSL cannot be called")
    assert not surely_made(RFC_PUBLIC, RFC_SIGNATURE, b"\x73")


@pytest.mark.parametrize("message", [b"", b"x", b"agentbox trace 2\n" * 99])
def test_changed_signature_key_or_message_is_not_accepted(message: bytes) -> None:
    signature = KEY.sign(message)
    for at in range(0, 64, 7):
        changed = bytearray(signature)
        changed[at] ^= 1
        assert not surely_made(PUBLIC, bytes(changed), message)
    assert not surely_made(PUBLIC, signature, message + b"\0")
    assert not surely_made(PUBLIC, signature[:-1], message)
    assert not surely_made(PUBLIC, signature + b"\0", message)
    assert not surely_made(b"\2" * 32, signature, message)
    assert not surely_made(PUBLIC[:-1], signature, message)
    assert PublicKey(PUBLIC).verifies(signature, message)


def test_command_that_hashes_by_openssl_needs_no_other_for_a_good_signature() -> None:
    words = [PUBLIC.hex(), KEY.sign(b"text").hex(), b"text".hex()]
    done = subprocess.run(
        [sys.executable, "-c", _FOUND_BY_OPENSSL, *words], capture_output=True, text=True, check=True, timeout=120
    )
    by_openssl = surely_made(PUBLIC, KEY.sign(b"text"), b"text")
    assert done.stdout == f"{not by_openssl}\n"
