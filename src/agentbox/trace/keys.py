# SPDX-License-Identifier: MIT
"""The user's own signing key, and the public keys that `verify` trusts.

The key lies in a directory that only its owner may enter, out of reach of every box, as standard PEM (PKCS 8 and
SubjectPublicKeyInfo), so that other tools can read it. `cryptography` is imported when something is signed or checked,
because that costs more than anything else of a short run; `SigningKey.prepare` does it on a thread meanwhile.
"""

from __future__ import annotations

import binascii
import os
import stat
import sys

from agentbox.errors import TraceKeyError
from agentbox.light import contextlib, digests
from agentbox.records import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

# What stands before the 32 bytes of an Ed25519 key in its DER form (RFC 8410).
_PRIVATE_DER = bytes.fromhex("302e020100300506032b657004220420")
_PUBLIC_DER = bytes.fromhex("302a300506032b6570032100")
_KEY_BYTES = 32
_MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class PublicKey:
    """32 bytes of an Ed25519 public key."""

    raw: bytes

    @property
    def id(self) -> str:
        """32 hexadecimal digits that name the key."""
        return digests.sha256(self.raw).hexdigest()[:32]

    def pem(self) -> str:
        """The key as PEM text."""
        return _pem("PUBLIC KEY", _PUBLIC_DER + self.raw)

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` was made over `message` with the private half."""
        if _surely_made(self.raw, signature, message):
            return True
        try:
            key = _public_key(self.raw)
        except ValueError:
            return False
        try:
            key.verify(signature, message)
        except Exception as error:
            # By its name: the module that holds the class imports more than all else of a verification.
            if type(error).__name__ != "InvalidSignature":
                raise
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """The private half. Its bytes never appear in a representation.

    `stated_public` are the bytes of the public half as a file gave them, so that they need not be computed.
    """

    seed: bytes = field(repr=False)
    stated_public: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def _private(self) -> Ed25519PrivateKey:
        loaded: Ed25519PrivateKey | None = self.__dict__.get("loaded")
        if loaded is None:
            self.__dict__["loaded"] = loaded = self._load()
        return loaded

    def _load(self) -> Ed25519PrivateKey:
        private = _private_key(self.seed)
        if self.stated_public not in (None, private.public_key().public_bytes_raw()):
            raise TraceKeyError(
                "the private and the public half of the signing key do not belong together",
                hint="remove the PUBLIC KEY part from the file that `agentbox key show` names",
            )
        return private

    @property
    def public(self) -> PublicKey:
        """The public half."""
        public: PublicKey | None = self.__dict__.get("public_half")
        if public is None:
            public = PublicKey(self.stated_public or self._private.public_key().public_bytes_raw())
            self.__dict__["public_half"] = public
        return public

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

    def __init__(self, directory: str | Path) -> None:
        self._directory = os.fspath(directory)
        self._signing = f"{self._directory}/signing.pem"
        self._former = f"{self._directory}/former"
        self.ledger = f"{self._directory}/ledger.jsonl"

    @property
    def directory(self) -> Path:
        """Where everything lies."""
        return _as_path(self._directory)

    @property
    def signing_path(self) -> Path:
        """The file of the key."""
        return _as_path(self._signing)

    @property
    def ledger_path(self) -> Path:
        """The file of the ledger."""
        return _as_path(self.ledger)

    def load(self) -> SigningKey | None:
        """The user's key; None when there is none yet. Raises TraceKeyError when others could have read it."""
        if not _is_private_directory(self._directory):
            return None
        text = _read_private(self._signing)
        return None if text is None else _signing_key(text, self._signing)

    def load_or_create(self) -> SigningKey:
        """The user's key, made now when there is none. Raises TraceKeyError."""
        return self.load() or self.create()

    def create(self) -> SigningKey:
        """Make the user's key; when another process was first, that one's. Raises TraceKeyError."""
        key = SigningKey(os.urandom(_KEY_BYTES))
        try:
            self._make_directory()
            _place(self._signing, key.pem(), 0o600)
        except FileExistsError:
            existing = self.load()
            if existing is None:
                raise TraceKeyError(f"{self._signing} cannot be made", hint="remove what is there") from None
            return existing
        except OSError as error:
            raise _unusable(self._directory, error) from error
        return key

    def replace(self) -> SigningKey:
        """Make a new key. Traces that the former one signed stay verifiable. Raises TraceKeyError."""
        former = self.load()
        if former is not None:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._former, 0o700)
                with contextlib.suppress(FileExistsError):
                    _place(f"{self._former}/{former.public.id}.pem", former.public.pem(), 0o600)
                os.unlink(self._signing)
            except OSError as error:
                raise _unusable(self._directory, error) from error
        return self.create()

    def trusted(self) -> tuple[PublicKey, ...]:
        """The user's own public key, then those it replaced; empty when there is none. Raises TraceKeyError."""
        key = self.load()
        if key is None:
            return ()
        names = sorted(os.listdir(self._former)) if os.path.isdir(self._former) else []
        former = [read_public_key(f"{self._former}/{name}") for name in names if name.endswith(".pem")]
        return (key.public, *former)

    def _make_directory(self) -> None:
        os.makedirs(os.path.dirname(self._directory), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._directory, 0o700)
        _is_private_directory(self._directory)


def read_public_key(path: str | Path) -> PublicKey:
    """A key from a PEM file: a public key, or a private one of which the public half is taken. Raises TraceKeyError."""
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise TraceKeyError(f"{path}: cannot be read: {error.strerror}", hint="give --key a public key file") from error
    if "PRIVATE KEY" in text:
        return _signing_key(text, path).public
    return PublicKey(_raw(text, "PUBLIC KEY", _PUBLIC_DER, path))


def _signing_key(text: str, path: str | Path) -> SigningKey:
    public = _raw(text, "PUBLIC KEY", _PUBLIC_DER, path) if "PUBLIC KEY" in text else None
    return SigningKey(_raw(text, "PRIVATE KEY", _PRIVATE_DER, path), public)


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{binascii.b2a_base64(der, newline=False).decode()}\n-----END {label}-----\n"


def _raw(text: str, label: str, prefix: bytes, path: str | Path) -> bytes:
    _, begins, rest = text.partition(f"-----BEGIN {label}-----")
    encoded, ends, _ = rest.partition(f"-----END {label}-----")
    try:
        whole = begins and ends and encoded[:1].isspace()
        der = binascii.a2b_base64("".join(encoded.split()), strict_mode=True) if whole else b""
    except ValueError:
        der = b""
    if len(der) != len(prefix) + _KEY_BYTES or not der.startswith(prefix):
        raise TraceKeyError(
            f"{path}: this is no Ed25519 {label.lower()} in PEM form",
            hint="`agentbox key export` writes the file that others need to verify your traces",
        )
    return der[len(prefix) :]


def _is_private_directory(directory: str) -> bool:
    """Whether it exists. Raises TraceKeyError when others could put a key into it."""
    try:
        facts = os.lstat(directory)
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


def _read_private(path: str) -> str | None:
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


def _place(path: str, text: str, mode: int) -> None:
    """Write a whole new file or nothing. Raises FileExistsError when there is one already."""
    draft = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{os.urandom(8).hex()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.link(draft, path)
    finally:
        os.unlink(draft)


def _unusable(path: str, error: OSError) -> TraceKeyError:
    return TraceKeyError(
        f"{path}: {error.strerror or error}",
        hint="traces are signed with a key that lies there; AGENTBOX_STATE_DIR names another place",
    )


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    """The key by the compiled part of `cryptography` alone, where it is as it was when this was written: the public
    module imports four times as much."""
    try:
        from cryptography.hazmat.bindings._rust import openssl

        key: Ed25519PrivateKey = openssl.ed25519.from_private_bytes(seed)
        return key
    except (AttributeError, ImportError):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(seed)


def _public_key(raw: bytes) -> Ed25519PublicKey:
    """The same for the public half. Raises ValueError for bytes that are none."""
    try:
        from cryptography.hazmat.bindings._rust import openssl

        key: Ed25519PublicKey = openssl.ed25519.from_public_bytes(raw)
        return key
    except (AttributeError, ImportError):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(raw)


def _surely_made(raw: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the OpenSSL that hashes here says so, where it is loaded and `cryptography` is not. What it does not
    accept is left to that."""
    if "_hashlib" not in sys.modules or "cryptography" in sys.modules:
        return False
    try:
        from agentbox.linux.signatures import surely_made
    except ImportError:
        return False
    return surely_made(raw, signature, message)


def _as_path(path: str) -> Path:
    from pathlib import Path

    return Path(path)
