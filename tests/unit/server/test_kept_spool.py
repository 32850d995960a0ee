# SPDX-License-Identifier: MIT
"""Output of commands in files that the next keeper finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentbox.server.sandboxes.kept_spool import KeptSpool


def test_what_is_held_is_in_no_file_until_it_is_kept(tmp_path: Path) -> None:
    spool = KeptSpool(str(tmp_path / "one"), 1000)
    spool.append(b"hello ")
    spool.append(b"there")
    assert (spool.held, spool.total, list(tmp_path.iterdir())) == (b"hello there", 11, [])
    spool.keep()
    spool.append(b"!")
    assert (spool.held, spool.total) == (None, 12)
    assert KeptSpool.found(spool.path).all() == b"hello there!"


def test_what_is_read_is_in_the_file_before_anybody_knows_it(tmp_path: Path) -> None:
    spool = KeptSpool(str(tmp_path / "one"), 1000)
    spool.append(b"hello")
    assert spool.read(1, 3) == (1, b"ell")
    assert KeptSpool.found(spool.path).all() == b"hello"


def test_much_goes_to_the_file_by_itself_and_keeps_beginning_and_end(tmp_path: Path) -> None:
    spool = KeptSpool(str(tmp_path / "one"), 100_000)
    for letter in (b"a", b"b", b"c"):
        spool.append(letter * 60_000)
    assert spool.held is None
    found = KeptSpool.found(spool.path)
    assert found.total == 180_000
    assert found.all() == b"a" * 50_000 + b"c" * 50_000


def test_what_cannot_be_kept_can_still_be_read(tmp_path: Path) -> None:
    spool = KeptSpool(str(tmp_path / "no directory" / "one"), 1000)
    spool.append(b"hello")
    with pytest.raises(FileNotFoundError):
        spool.keep()
    spool.close()
    assert (spool.total, spool.read(0, 100), spool.all()) == (5, (0, b"hello"), b"hello")


def test_what_was_removed_is_not_written_again(tmp_path: Path) -> None:
    spool = KeptSpool(str(tmp_path / "one"), 1000)
    spool.append(b"hello")
    spool.remove()
    spool.close()
    assert list(tmp_path.iterdir()) == []
    assert spool.read(0, 10) == (0, b"")
