# SPDX-License-Identifier: MIT
"""The signing key: made once, readable by its owner only, replaced without losing old traces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentbox.errors import TraceKeyError
from agentbox.trace.keys import KeyStore, PublicKey, SigningKey, read_public_key
from tests.conftest import not_here


def test_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "state" / "trace")
    assert store.load() is None
    assert store.trusted() == ()
    made = store.load_or_create()
    assert store.load_or_create() == made
    assert store.signing_path.stat().st_mode & 0o777 == 0o600
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in store.directory.iterdir()] == ["signing.pem"]


def test_processes_that_start_together_get_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: KeyStore(tmp_path / "keys").load_or_create(), range(24)))
    assert len(set(made)) == 1


def test_signature_is_good_for_its_message_and_key_only() -> None:
    key, other = SigningKey(b"a" * 32), SigningKey(b"b" * 32)
    signature = key.sign(b"message")
    assert key.public.verifies(signature, b"message")
    assert not key.public.verifies(signature, b"massage")
    assert not other.public.verifies(signature, b"message")
    assert not key.public.verifies(b"short", b"message")
    assert not PublicKey(b"\xff" * 32).verifies(signature, b"message")


def test_private_bytes_do_not_appear_in_a_representation() -> None:
    assert "aaaa" not in repr(SigningKey(b"a" * 32))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_key_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    store = KeyStore(tmp_path / "keys")
    store.create()
    store.signing_path.chmod(mode)
    with pytest.raises(TraceKeyError, match="nobody else") as caught:
        store.load()
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    store = KeyStore(tmp_path / "keys")
    store.create()
    store.directory.chmod(mode)
    with pytest.raises(TraceKeyError, match="nobody else"):
        store.load()


def test_links_in_the_place_of_key_and_directory_are_refused(tmp_path: Path) -> None:
    real = KeyStore(tmp_path / "real")
    real.create()
    linked = KeyStore(tmp_path / "linked")
    linked.directory.symlink_to(real.directory)
    with pytest.raises(TraceKeyError):
        linked.load()
    linked.directory.unlink()
    linked.directory.mkdir(mode=0o700)
    linked.signing_path.symlink_to(real.signing_path)
    for attempt in (linked.load, linked.create, linked.load_or_create):
        with pytest.raises(TraceKeyError):
            attempt()


def test_pipe_in_the_place_of_the_key_is_refused_without_waiting(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    store.directory.mkdir(mode=0o700)
    os.mkfifo(store.signing_path, 0o600)
    with pytest.raises(TraceKeyError):
        store.load()


@pytest.mark.root
def test_key_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        not_here("only root can give a file away")
    store = KeyStore(tmp_path / "keys")
    store.create()
    os.chown(store.signing_path, 12345, 12345)
    with pytest.raises(TraceKeyError):
        store.load()


@pytest.mark.parametrize(
    "text",
    ["", "hello", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----\n!!"],
)
def test_file_that_is_no_key_is_an_error_with_a_hint(tmp_path: Path, text: str) -> None:
    store = KeyStore(tmp_path / "keys")
    store.create()
    store.signing_path.write_text(text)
    with pytest.raises(TraceKeyError, match="no Ed25519") as caught:
        store.load()
    assert caught.value.hint


def test_replaced_key_stays_trusted_and_signs_no_more(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    first = store.create()
    second = store.replace()
    third = store.replace()
    assert len({first, second, third}) == 3
    assert store.load() == third
    assert store.trusted()[0] == third.public
    assert set(store.trusted()[1:]) == {first.public, second.public}


def test_public_key_is_read_from_either_half(tmp_path: Path) -> None:
    key = SigningKey(b"k" * 32)
    (tmp_path / "public.pem").write_text(key.public.pem())
    (tmp_path / "private.pem").write_text(key.pem())
    assert read_public_key(tmp_path / "public.pem") == key.public == read_public_key(tmp_path / "private.pem")
    with pytest.raises(TraceKeyError, match="cannot be read"):
        read_public_key(tmp_path / "missing.pem")


def test_openssl_reads_both_files(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH")
    key = SigningKey(b"k" * 32)
    (tmp_path / "private.pem").write_text(key.pem())
    done = subprocess.run(
        ["openssl", "pkey", "-in", tmp_path / "private.pem", "-pubout"], capture_output=True, text=True, check=True
    )
    assert done.stdout == key.public.pem()


def test_halves_that_do_not_belong_together_are_refused_before_anything_is_signed(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    store.create()
    private = SigningKey(b"a" * 32).pem().split("-----BEGIN PUBLIC")[0]
    store.signing_path.write_text(private + SigningKey(b"b" * 32).public.pem())
    loaded = store.load()
    assert loaded is not None
    with pytest.raises(TraceKeyError, match="do not belong together"):
        loaded.sign(b"message")


def test_private_half_alone_is_enough(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    made = store.create()
    store.signing_path.write_text(made.pem().split("-----BEGIN PUBLIC")[0])
    loaded = store.load()
    assert loaded is not None
    assert (loaded, loaded.public) == (made, made.public)


def test_recording_loads_the_cryptography_only_to_sign(tmp_path: Path) -> None:
    KeyStore(tmp_path / "keys").create()
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from agentbox.trace.keys import KeyStore\n"
        "from agentbox.trace.ledger import Ledger\n"
        "from agentbox.trace.writer import Run, TraceWriter\n"
        "store = KeyStore(Path(sys.argv[1]) / 'keys')\n"
        "writer = TraceWriter(Path(sys.argv[1]) / 't', Run('r', '', {}), store.load(), Ledger(store.ledger_path))\n"
        "writer.append('effect', 'clock.now', {})\n"
        "print('cryptography' in sys.modules)\n"
        "writer.seal()\n"
        "print('cryptography' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
