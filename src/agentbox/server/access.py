# SPDX-License-Identifier: MIT
"""Who may call: API keys, the bind rule, and the Host and Origin checks. Pure but for reading the key file."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agentbox.config import Settings
from agentbox.errors import ConfigError
from agentbox.models import DEFAULT_OWNER

SHORT_KEY_CHARACTERS = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_KEY = re.compile(r"[\x21-\x7e]{1,1024}\Z")
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?\Z")


@dataclass(frozen=True, slots=True)
class KeyRing:
    """SHA-256 digests of the keys and the caller that each one names. Empty: no key is needed."""

    owners: Mapping[bytes, str]

    def __bool__(self) -> bool:
        return bool(self.owners)

    def owner_of(self, key: str) -> str | None:
        """The caller that the key names, or None. Takes the same time for every key."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, owner in self.owners.items():
            if hmac.compare_digest(known, digest):
                found = owner
        return found


def load_keys(settings: Settings) -> tuple[KeyRing, list[str]]:
    """Keys of AGENTBOX_TOKEN (caller "default") and of the key file, and warnings.

    Raises ConfigError for a file that others may read, and for a bad line with its number.
    """
    owners: dict[bytes, str] = {}
    warnings = []
    if settings.token:
        if not _KEY.match(settings.token):
            raise ConfigError(
                "AGENTBOX_TOKEN must be printable ASCII without spaces", hint="make one: openssl rand -hex 32"
            )
        owners[hashlib.sha256(settings.token.encode()).digest()] = DEFAULT_OWNER
        if len(settings.token) < SHORT_KEY_CHARACTERS:
            warnings.append("AGENTBOX_TOKEN is short and can be guessed; make one: openssl rand -hex 32")
    if settings.key_file is not None:
        warnings += _read_key_file(settings.key_file, owners)
    return KeyRing(owners), warnings


def _read_key_file(path: Path, owners: dict[bytes, str]) -> list[str]:
    warnings = []
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"AGENTBOX_KEY_FILE {path}: cannot be read: {error}", hint="check the path") from error
    if mode & stat.S_IROTH:
        raise ConfigError(f"AGENTBOX_KEY_FILE {path} can be read by every user", hint=f"chmod 600 {path}")
    if mode & stat.S_IRGRP:
        warnings.append(f"AGENTBOX_KEY_FILE {path} can be read by its group; chmod 600 {path}")
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        where = f"AGENTBOX_KEY_FILE {path} line {number}"
        if not colon or not _NAME.match(name) or not _KEY.match(key):
            raise ConfigError(
                f"{where}: not a `name:key` line", hint="name: letters, digits . _ -; key: printable ASCII, no spaces"
            )
        digest = hashlib.sha256(key.encode()).digest()
        if name in owners.values():
            raise ConfigError(f"{where}: the name {name!r} has a key already", hint="give each caller one name")
        if digest in owners:
            raise ConfigError(f"{where}: the key of {name!r} is also another caller's", hint="give each caller a key")
        owners[digest] = name
        if len(key) < SHORT_KEY_CHARACTERS:
            warnings.append(f"{where}: the key is short and can be guessed; make one: openssl rand -hex 32")
    if not owners:
        raise ConfigError(f"AGENTBOX_KEY_FILE {path} holds no key", hint="add a `name:key` line, or unset it")
    return warnings


def is_loopback(host: str) -> bool:
    """Whether the name or address can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(settings: Settings, keys: KeyRing) -> None:
    """Refuse to listen where others can reach the server without a key. Raises ConfigError with the two ways out."""
    if not keys and not is_loopback(settings.host):
        raise ConfigError(
            f"refusing to listen on {settings.host or 'every address'} without an API key: anyone who reaches the "
            "port could run code",
            hint="set AGENTBOX_TOKEN or AGENTBOX_KEY_FILE, or listen on 127.0.0.1",
        )


@dataclass(frozen=True, slots=True)
class HostRule:
    """Which Host headers are answered. A page of a foreign site whose name is made to point here sends its own name.

    Loopback names and addresses, the name or address that the server listens on and `allowed_hosts` are answered, with
    any port. A server that needs a key and listens beyond loopback also answers IP addresses: they are no names that
    an attacker could re-point.
    """

    names: frozenset[str]
    any_address: bool

    @classmethod
    def of(cls, settings: Settings, keys: KeyRing) -> HostRule:
        """The rule for a server with these settings."""
        wide = not is_loopback(settings.host)
        return cls(frozenset({settings.host.lower(), *settings.allowed_hosts}), any_address=wide and bool(keys))

    def allows(self, header: str) -> bool:
        """Whether a request with this Host header is answered."""
        match = _HOST.match(header)
        if not match:
            return False
        host = (match["v6"] or match["name"]).lower()
        if is_loopback(host) or host in self.names:
            return True
        if not self.any_address:
            return False
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def origin_is_own(origin: str, host_header: str) -> bool:
    """Whether an Origin header names this server itself, as the browser addressed it."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and parts.netloc.lower() == host_header.lower()
