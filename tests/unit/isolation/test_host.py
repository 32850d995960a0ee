# SPDX-License-Identifier: MIT
"""A refusal of the kernel becomes a requirement with the way to meet it."""

from __future__ import annotations

import errno

import pytest

from agentbox.errors import ConfinementError
from agentbox.isolation import host


def refusal(step: str, code: int) -> ConfinementError:
    return ConfinementError(f"{step}: refused", step=step, errno=code)


@pytest.fixture
def kernel_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    files: dict[str, str] = {}
    monkeypatch.setattr(host, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(host, "in_container", lambda: False)
    return files


@pytest.mark.parametrize("step", ["unshare", "map ids", "loopback", "private mounts"])
def test_ubuntus_apparmor_rule_is_named_with_its_switch(kernel_files: dict[str, str], step: str) -> None:
    kernel_files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "1"
    found = host.explain_refusal(refusal(step, errno.EACCES))
    assert not found.met
    assert "AppArmor" in found.fix
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in found.fix


def test_a_limit_of_no_user_namespaces_is_named(kernel_files: dict[str, str]) -> None:
    kernel_files["/proc/sys/user/max_user_namespaces"] = "0"
    assert "user.max_user_namespaces" in host.explain_refusal(refusal("unshare", errno.ENOSPC)).fix


def test_debians_old_switch_is_named(kernel_files: dict[str, str]) -> None:
    kernel_files["/proc/sys/kernel/unprivileged_userns_clone"] = "0"
    assert "kernel.unprivileged_userns_clone=1" in host.explain_refusal(refusal("unshare", errno.EPERM)).fix


def test_a_container_without_user_namespaces_is_told_its_flags(
    kernel_files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "in_container", lambda: True)
    assert "seccomp=unconfined" in host.explain_refusal(refusal("unshare", errno.EPERM)).fix


def test_a_masked_proc_is_told_apart(kernel_files: dict[str, str]) -> None:
    found = host.explain_refusal(refusal("mount /proc", errno.EPERM))
    assert "systempaths=unconfined" in found.fix


def test_boxes_that_live_at_once_have_different_ids_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "_mapped_ids", lambda _: [(0, 4294967295)])
    ids = host.BoxIds()
    taken = [ids.take()[0] for _ in range(200)]
    assert len(set(taken)) == 200
    assert min(taken) >= host.BOX_UID_BASE


def test_a_root_with_few_mapped_ids_takes_them_from_the_upper_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "geteuid", lambda: 0)
    monkeypatch.setattr(host, "_mapped_ids", lambda _: [(0, 65536)])
    uid, _ = host.BoxIds().take()
    assert 32768 <= uid < 65536


def test_an_ordinary_user_lends_its_own_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.os, "geteuid", lambda: 1234)
    monkeypatch.setattr(host.os, "getegid", lambda: 1235)
    assert host.BoxIds().take() == (1234, 1235)
