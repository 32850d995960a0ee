# SPDX-License-Identifier: MIT
"""Ed25519 by the OpenSSL with which the interpreter hashes, where that is loaded already: loading `cryptography`, which
has an OpenSSL of its own, takes ten times as long as checking a signature."""

from __future__ import annotations

import sys

from agentbox.linux import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# EVP_PKEY_ED25519
_KIND = 1087
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


def surely_made(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether OpenSSL says that this signature was made over the message with the private half of the key. False says
    nothing: it is wrong, or OpenSSL is not to be had in this way."""
    path = getattr(sys.modules.get("_hashlib"), "__file__", None)
    if not path or len(public) != _KEY_BYTES or len(signature) != _SIGNATURE_BYTES:
        return False
    try:
        # What the module was linked with is found by its names too.
        library = foreign.CDLL(path)
        make_key = _function(library, "EVP_PKEY_new_raw_public_key", "ippn", foreign.c_void_p)
        make_context = _function(library, "EVP_MD_CTX_new", "", foreign.c_void_p)
        begin = _function(library, "EVP_DigestVerifyInit", "ppppp", foreign.c_int)
        finish = _function(library, "EVP_DigestVerify", "ppnpn", foreign.c_int)
        free_key = _function(library, "EVP_PKEY_free", "p", None)
        free_context = _function(library, "EVP_MD_CTX_free", "p", None)
    except (AttributeError, OSError):
        return False
    key, context = make_key(_KIND, None, public, len(public)), make_context()
    try:
        if not key or not context or begin(context, None, None, None, key) != 1:
            return False
        return bool(finish(context, signature, len(signature), message, len(message)) == 1)
    finally:
        free_context(context)
        free_key(key)


def _function(library: Any, name: str, arguments: str, result: Any) -> Any:
    """A function of the library: `arguments` are i for an integer, p for a pointer or bytes, n for a size."""
    kinds = {"i": foreign.c_int, "p": foreign.c_void_p, "n": foreign.c_size_t}
    function = getattr(library, name)
    function.argtypes = [kinds[letter] for letter in arguments]
    function.restype = result
    return function
