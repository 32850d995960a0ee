# SPDX-License-Identifier: MIT
# ruff: noqa: E501 - programs of the guest are kept on a line each
"""Node's own permission flags: which version gets which, and what they hold when the shim is fooled."""

from __future__ import annotations

import os

import pytest

from agentbox.engine.node_flags import NodeGrants, node_grants, permission_flags, read_version, version_of
from agentbox.engine.policy_world import read_policy
from agentbox.guest.injection import guard_directory
from tests.conftest import not_here
from tests.integration.guest.conftest import SECRET
from tests.integration.guest.guarded import Host
from tests.nodes import version

GRANTS = NodeGrants(reads=("/p/data",), writes=("/p/out",), programs=True)


@pytest.mark.parametrize(
    ("text", "expected"), [("v18.20.4\n", (18, 20)), ("v24.0.0", (24, 0)), ("node", None), ("", None), ("v1.2", None)]
)
def test_version_is_read_from_what_node_prints(text: str, expected: tuple[int, int] | None) -> None:
    assert read_version(text) == expected


@pytest.mark.parametrize("of", [None, (16, 0), (18, 20), (19, 9)])
def test_versions_without_a_permission_model_get_no_flag(of: tuple[int, int] | None) -> None:
    assert permission_flags(of, GRANTS) == []


@pytest.mark.parametrize(
    ("of", "flag"),
    [
        ((20, 0), "--experimental-permission"),
        ((22, 12), "--experimental-permission"),
        ((22, 13), "--permission"),
        ((23, 4), "--experimental-permission"),
        ((23, 5), "--permission"),
        ((24, 0), "--permission"),
    ],
)
def test_model_is_turned_on_by_the_name_that_a_version_knows(of: tuple[int, int], flag: str) -> None:
    flags = permission_flags(of, GRANTS)
    assert flags[0] == flag
    assert {"--allow-fs-read=/p/data", "--allow-fs-read=/p/out", "--allow-fs-write=/p/out"} <= set(flags)
    assert "--allow-fs-write=/p/data" not in flags
    assert {"--allow-worker", "--allow-child-process"} <= set(flags)
    assert not {"--allow-addons", "--allow-wasi"} & set(flags)


def test_programs_are_allowed_only_where_a_rule_allows_one() -> None:
    assert "--allow-child-process" not in permission_flags((24, 0), NodeGrants())


def test_network_is_the_shims_where_the_model_knows_it() -> None:
    assert "--allow-net" in permission_flags((25, 0), GRANTS)
    assert "--allow-net" not in permission_flags((24, 9), GRANTS)


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        ("/a b", '"--allow-fs-read=/a b"'),
        ('/a"b', '"--allow-fs-read=/a\\"b"'),
        ("/a/b,c/d", "--allow-fs-read=/a"),
        ("/*", "--allow-fs-read=/*"),
    ],
)
def test_path_is_said_so_that_node_reads_it(path: str, flag: str) -> None:
    assert flag in permission_flags((24, 0), NodeGrants(reads=(path,)))


def test_warnings_of_the_model_do_not_stand_among_what_a_program_prints() -> None:
    assert "--disable-warning=ExperimentalWarning" in permission_flags((20, 11), GRANTS)
    assert not [flag for flag in permission_flags((20, 10), GRANTS) if "warning" in flag]


def test_policy_is_said_in_both_spellings_of_a_link(host: Host) -> None:
    (host.project / "link").symlink_to("data")
    grants = node_grants(read_policy("read: ./link\nwrite: ./out\n", root=str(host.project)), reads=["/x"])
    assert grants.reads == ("/x", f"{host.project}/data", f"{host.project}/link")
    assert grants.writes == (f"{host.project}/out",)
    assert not grants.programs


def flags_of(host: Host, node: str, policy: str) -> list[str]:
    own = [str(guard_directory(host.guards, None)), str(host.base / "policy"), str(host.base / "channel")]
    reads = [*own, os.path.dirname(os.path.dirname(os.path.realpath(node)))]
    grants = node_grants(read_policy(policy, root=str(host.project)), reads=reads, writes=[str(host.base / "private")])
    return permission_flags(version_of(node), grants)


def test_ordinary_work_goes_on_under_the_flags(host: Host, node: str) -> None:
    policy = "read: ./data\nwrite: ./out\nexec: echo\n"
    code = (
        "const fs = require('fs'); fs.writeFileSync('out/x', fs.readFileSync('data/a.txt')); fs.renameSync('out/x', 'out/y');"
        "console.log(fs.readFileSync('out/y', 'utf8'), String(require('child_process').execFileSync('echo', ['b'])).trim());"
        "new (require('worker_threads').Worker)(`console.log(require('fs').readFileSync('data/a.txt', 'utf8'))`, { eval: true });"
        "fs.mkdtempSync(require('os').tmpdir() + '/x'); import('node:os').then((m) => console.log(typeof m.cpus))"
    )
    done = host.run(policy, [node, "-e", code], node_flags=flags_of(host, node, policy))
    assert sorted(done.stdout.split()) == ["b", "function", "hello", "hello"], done.stderr
    assert done.stderr == ""


def test_flags_hold_what_a_fooled_shim_lets_pass(host: Host, node: str) -> None:
    if version(node) < (20, 0):
        assert flags_of(host, node, "read: ./data\n") == []
        return
    secret = host.base / "outside" / "secret.txt"
    code = (
        "Map.prototype.has = function () { return this.size > 0 }; Map.prototype.get = function () { return this.size ? {} : undefined };"
        f"try {{ console.log(require('fs').readFileSync({str(secret)!r}, 'utf8')) }} catch (e) {{ console.log(e.code) }}"
    )
    policy = "read: ./data\n"
    done = host.run(policy, [node, "-e", code], node_flags=flags_of(host, node, policy))
    assert SECRET not in done.stdout
    assert done.stdout.split() == ["ERR_ACCESS_DENIED"], done.stderr


def test_child_that_drops_the_flags_is_not_started(host: Host, node: str) -> None:
    if version(node) < (20, 0):
        not_here("this version of Node has no permission model")
    policy = f"read: ./data\nexec: {node}\n"
    code = (
        "const c = require('child_process'), options = process.env.NODE_OPTIONS.split(' ').slice(0, 2).join(' ');"
        "for (const o of [process.env.NODE_OPTIONS, options]) try { console.log(String(c.execFileSync(process.execPath, ['-e',"
        " 'console.log(1)'], { env: { ...process.env, NODE_OPTIONS: o } })).trim()) } catch (e) { console.log(e.name) }"
    )
    done = host.run(policy, [node, "-e", code], node_flags=flags_of(host, node, policy))
    assert done.stdout.split() == ["1", "AgentboxPolicyError"], done.stderr
