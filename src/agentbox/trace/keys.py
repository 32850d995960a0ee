# SPDX-License-Identifier: MIT
"""The user's own signing key, and the public keys that `verify` trusts.

The key lies in a directory that only its owner may enter, out of reach of every box, as standard PEM (PKCS 8 and
SubjectPublicKeyInfo), so that other tools can read it. `cryptography` is imported when something is signed or checked,
because that costs more than anything else of a short run; `SigningKey.prepare` does it on a thread meanwhile.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
import stat
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentbox.errors import TraceKeyError
from agentbox.light import contextlib
from agentbox.records import dataclass, field

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# What stands before the 32 bytes of an Ed25519 key in its DER form (RFC 8410).
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
_KEY_BYTES = 32
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class PublicKey:
    """32 bytes of an Ed25519 public key."""

    raw: bytes

    @cached_property
    def id(self) -> str:
        """32 hexadecimal digits that name the key."""
        return hashlib.sha256(self.raw).hexdigest()[:32]

    def pem(self) -> str:
        """The key as PEM text."""
        return _pem("PUBLIC KEY", _PUBLIC_DER + self.raw)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` was made over `message` with the private half."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """The private half. Its bytes never appear in a representation.

    `stated_public` are the bytes of the public half as a file gave them, so that they need not be computed.
    """

    seed: bytes = field(repr=False)
    stated_public: bytes | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        private = Ed25519PrivateKey.from_private_bytes(self.seed)
        if self.stated_public not in (None, private.public_key().public_bytes_raw()):
            raise TraceKeyError(
                "the private and the public half of the signing key do not belong together",
                hint="remove the PUBLIC KEY part from the file that `agentbox key show` names",
            )
        return private

    @cached_property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self.stated_public or self._private.public_key().public_bytes_raw())

    def prepare(self) -> None:
        """Load what signing needs; call it on a thread while a run is going on. Raises TraceKeyError."""
        self._private  # noqa: B018

    def sign(self, message: bytes) -> bytes:
        """64 bytes. Raises TraceKeyError."""
        return self._private.sign(message)

    def pem(self) -> str:
        """Both halves as PEM text."""
        return _pem("PRIVATE KEY", _PRIVATE_DER + self.seed) + self.public.pem()


class KeyStore:
    """The directory of the user's key: `signing.pem`, `former/`, and the ledger beside them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.signing_path = directory / "signing.pem"
        self.ledger_path = directory / "ledger.jsonl"
        self._former = directory / "former"

    def load(self) -> SigningKey | None:
        """The user's key; None when there is none yet. Raises TraceKeyError when others could have read it."""
        if not _is_private_directory(self.directory):
            return None
        text = _read_private(self.signing_path)
        return None if text is None else _signing_key(text, self.signing_path)

    def load_or_create(self) -> SigningKey:
        """The user's key, made now when there is none. Raises TraceKeyError."""
        return self.load() or self.create()

    def create(self) -> SigningKey:
        """Make the user's key; when another process was first, that one's. Raises TraceKeyError."""
        key = SigningKey(secrets.token_bytes(_KEY_BYTES))
        try:
            self._make_directory()
            _place(self.signing_path, key.pem(), 0o600)
        except FileExistsError:
            existing = self.load()
            if existing is None:
                raise TraceKeyError(f"{self.signing_path} cannot be made", hint="remove what is there") from None
            return existing
        except OSError as error:
            raise _unusable(self.directory, error) from error
        return key

    def replace(self) -> SigningKey:
        """Make a new key. Traces that the former one signed stay verifiable. Raises TraceKeyError."""
        former = self.load()
        if former is not None:
            try:
                self._former.mkdir(mode=0o700, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    _place(self._former / f"{former.public.id}.pem", former.public.pem(), 0o600)
                self.signing_path.unlink()
            except OSError as error:
                raise _unusable(self.directory, error) from error
        return self.create()

    def trusted(self) -> tuple[PublicKey, ...]:
        """The user's own public key, then those it replaced; empty when there is none. Raises TraceKeyError."""
        key = self.load()
        if key is None:
            return ()
        former = [read_public_key(path) for path in sorted(self._former.glob("*.pem"))] if self._former.is_dir() else []
        return (key.public, *former)

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _is_private_directory(self.directory)


def read_public_key(path: Path) -> PublicKey:
    """A key from a PEM file: a public key, or a private one of which the public half is taken. Raises TraceKeyError."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise TraceKeyError(f"{path}: cannot be read: {error.strerror}", hint="give --key a public key file") from error
    if "PRIVATE KEY" in text:
        return _signing_key(text, path).public
    return PublicKey(_raw(text, "PUBLIC KEY", _PUBLIC_DER, path))


def _signing_key(text: str, path: Path) -> SigningKey:
    public = _raw(text, "PUBLIC KEY", _PUBLIC_DER, path) if "PUBLIC KEY" in text else None
    return SigningKey(_raw(text, "PRIVATE KEY", _PRIVATE_DER, path), public)


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.b64encode(der).decode()}\n-----END {label}-----\n"


def _raw(text: str, label: str, prefix: bytes, path: Path) -> bytes:
    found = re.search(rf"-----BEGIN {label}-----\s(.*?)-----END {label}-----", text, re.DOTALL)
    try:
        der = base64.b64decode("".join(found[1].split()), validate=True) if found else b""
    except binascii.Error:
        der = b""
    if len(der) != len(prefix) + _KEY_BYTES or not der.startswith(prefix):
        raise TraceKeyError(
            f"{path}: this is no Ed25519 {label.lower()} in PEM form",
            hint="`agentbox key export` writes the file that others need to verify your traces",
        )
    return der[len(prefix) :]


def _is_private_directory(directory: Path) -> bool:
    """Whether it exists. Raises TraceKeyError when others could put a key into it."""
    try:
        facts = directory.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unusable(directory, error) from error
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise TraceKeyError(
            f"{directory}: the directory of the signing key must be a directory of yours that nobody else may enter",
            hint=f"chmod 700 {directory}, or move it away and let agentbox make a new one",
        )
    return True


def _read_private(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error) from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise TraceKeyError(
                f"{path}: the signing key must be a file of yours that nobody else may read",
                hint=f"if nobody else had the chance to read it: chmod 600 {path}; else `agentbox key new --replace`",
            )
        return file.read(_MAX_FILE_BYTES).decode("ascii", "replace")


def _place(path: Path, text: str, mode: int) -> None:
    """Write a whole new file or nothing. Raises FileExistsError when there is one already."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    finally:
        draft.unlink()


def _unusable(path: Path, error: OSError) -> TraceKeyError:
    return TraceKeyError(
        f"{path}: {error.strerror or error}",
        hint="traces are signed with a key that lies there; AGENTBOX_STATE_DIR names another place",
    )
