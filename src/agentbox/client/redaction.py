# SPDX-License-Identifier: MIT
"""What of a request is recorded: no password, no token, but enough to know the same request again."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HIDDEN = "***"
_PARTS = ("token", "secret", "passw", "pwd", "auth", "apikey", "signature", "credential", "session", "cookie", "jwt")
_WORDS = frozenset(("key", "sig", "pass", "pin", "otp"))


def is_secret(name: str) -> bool:
    """Whether what has this name is likely a secret: a header, or a parameter of an address."""
    plain = name.lower()
    words = plain.replace("-", "_").split("_")
    joined = "".join(words)
    return any(part in joined for part in _PARTS) or any(word in _WORDS for word in words)


def headers(given: Any) -> Any:
    """Headers, with secrets hidden."""
    return {name: HIDDEN if is_secret(name) else value for name, value in given.items()}


def url(text: str) -> str:
    """An address without the password before its host, and without secrets among its parameters."""
    scheme, separator, rest = text.partition("://")
    if separator:
        end = min([at for at in (rest.find("/"), rest.find("?"), rest.find("#")) if at >= 0] or [len(rest)])
        user, at_sign, host = rest[:end].rpartition("@")
        if at_sign:
            rest = f"{HIDDEN}@{host}{rest[end:]}" if user else rest
        text = scheme + separator + rest
    text, mark, fragment = text.partition("#")
    text, question, query = text.partition("?")
    if question:
        text += question + "&".join([_parameter(part) for part in query.split("&")])
    if mark:
        text += mark + "&".join([_parameter(part) for part in fragment.split("&")])
    return text


def _parameter(text: str) -> str:
    name, equals, _ = text.partition("=")
    return f"{name}={HIDDEN}" if equals and is_secret(name) else text
