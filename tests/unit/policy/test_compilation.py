# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from agentbox.models import FileDenial, FileGrant, Layer, Limits
from agentbox.policy.compilation import compile_policy, tightened
from agentbox.policy.document import Policy, intersect
from agentbox.policy.evaluation import decide
from agentbox.policy.parser import parse
from agentbox.policy.questions import Read, Write

LIMITS = Limits(30, 1024, 1.0, 256, 256, 1 << 20)


class Files:
    """A file system as a list of paths."""

    def __init__(self, *paths: str, too_many: bool = False) -> None:
        self._paths = {up for path in paths for up in _with_parents(path)}
        self._too_many = too_many

    def exists(self, path: str) -> bool:
        return path in self._paths

    def below(self, directory: str, wanted: Callable[[str], bool], depth: int | None) -> tuple[str, ...] | None:
        if self._too_many:
            return None
        prefix = directory.rstrip("/") + "/"
        inside = [p for p in self._paths if p.startswith(prefix)]
        found = [p for p in inside if (depth is None or p[len(prefix) :].count("/") < depth) and wanted(p)]
        return tuple(sorted(p for p in found if not any(p.startswith(f"{other}/") for other in found)))


def _with_parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: i + 1]) or "/" for i in range(len(parts))]


def read(text: str) -> Policy:
    return parse(
        text, root="/w", home="/home/u", find_program=lambda name: f"/usr/bin/{name}" if name == "git" else None
    )


def grants(text: str, view: Files) -> list[tuple[str, bool, bool, Layer]]:
    files = compile_policy(read(text), LIMITS, view).files
    return [(grant.path, grant.writable, grant.present, grant.held_by) for grant in files]


def test_literal_paths_are_grants_that_the_kernel_holds() -> None:
    assert grants("read: ./data\nwrite: ./out\n", Files("/w/data/x")) == [
        ("/w/data", False, True, Layer.KERNEL),
        ("/w/out", True, False, Layer.KERNEL),
    ]


def test_two_rules_for_a_path_give_the_wider_one() -> None:
    assert grants("read: ./a\nwrite: ./a\nread: ./a", Files("/w/a")) == [("/w/a", True, True, Layer.KERNEL)]


def test_wildcard_for_reading_becomes_the_files_that_are_there() -> None:
    view = Files("/w/data/a.csv", "/w/data/b.txt", "/w/data/sub/c.csv", "/w/src/x/y.py")
    assert [g[0] for g in grants("read: ./data/*.csv\n", view)] == ["/w/data/a.csv"]
    assert [g[0] for g in grants("read: ./**/*.csv\n", view)] == ["/w/data/a.csv", "/w/data/sub/c.csv"]


def test_wildcard_for_writing_is_left_to_the_guard_and_said_so() -> None:
    confinement = compile_policy(read("write: ./out/*.txt\n"), LIMITS, Files("/w/out/a.txt"))
    assert confinement.files == (FileGrant("/w/out", True, True, Layer.INTERPRETER, "write: ./out/*.txt"),)
    assert confinement.interpreter_only == ("write: ./out/*.txt",)


def test_wildcard_with_too_many_files_is_left_to_the_guard() -> None:
    confinement = compile_policy(read("read: ./**/*.py\n"), LIMITS, Files("/w/a.py", too_many=True))
    assert [(g.path, g.held_by) for g in confinement.files] == [("/w", Layer.INTERPRETER)]
    assert confinement.interpreter_only == ("read: ./**/*.py",)


def test_denial_of_what_exists_is_taken_out_exactly() -> None:
    confinement = compile_policy(
        read("write: .\ndeny: read ./secret\ndeny: write ./keep\n"), LIMITS, Files("/w/secret", "/w/keep")
    )
    assert FileDenial("/w/secret", True, True, "deny: read ./secret") in confinement.file_denials
    assert FileDenial("/w/keep", False, True, "deny: write ./keep") in confinement.file_denials
    assert confinement.interpreter_only == ()


def test_denial_of_what_may_still_appear_is_left_to_the_guard_too() -> None:
    confinement = compile_policy(
        read("write: .\ndeny: read ./secret\ndeny: read ./**/.env\n"), LIMITS, Files("/w/a/.env")
    )
    assert confinement.interpreter_only == ("deny: read ./secret", "deny: read ./**/.env")
    assert FileDenial("/w/a/.env", True, True, "deny: read ./**/.env") in confinement.file_denials


def test_denial_below_a_read_grant_needs_no_guard() -> None:
    confinement = compile_policy(read("read: .\ndeny: read ./secret\n"), LIMITS, Files("/w/a"))
    assert confinement.interpreter_only == ()


def test_policy_and_traces_are_taken_out_of_write_grants() -> None:
    policy = parse("write: .\n", root="/w", path="agentbox.policy")
    confinement = compile_policy(policy, LIMITS, Files("/w/agentbox.policy", "/w/.agentbox"))
    assert [(d.path, d.hidden, d.present) for d in confinement.file_denials] == [
        ("/w/.agentbox", False, True),
        ("/w/agentbox.policy", False, True),
        ("/w/trace.jsonl", False, False),
    ]


def test_protect_makes_what_exists_read_only_and_leaves_ordinary_work_alone() -> None:
    view = Files("/w/.git/hooks/x", "/w/.git/objects/a", "/w/v/.git/config", "/w/.envrc", "/w/a.pth", "/w/src/a.py")
    confinement = compile_policy(read("write: .\nprotect: on\n"), LIMITS, view)
    protected = [d.path for d in confinement.file_denials if d.rule == "protect: on"]
    assert protected == ["/w/.envrc", "/w/.git/hooks", "/w/a.pth", "/w/v/.git/config"]
    assert confinement.interpreter_only == ("protect: on",)


def test_counting_rules_are_for_the_guard() -> None:
    text = "read-once: ./k\nwrite: ./out max=1MB\nnet: a.test @1/s\n"
    confinement = compile_policy(read(text), LIMITS, Files("/w/k", "/w/out"))
    assert set(confinement.interpreter_only) == {"read-once: ./k", "write: ./out max=1MB"}


def test_programs_variables_and_hosts_are_carried_over() -> None:
    policy = read("exec: git 'a b'\ndeny: exec gone\nenv: HOME\nnet: A.test:443\ndeny: net b.test\n")
    confinement = compile_policy(policy, LIMITS, Files(), read_only=("/opt/python",))
    (programs,), (variables,), (hosts,) = confinement.programs, confinement.variables, confinement.hosts
    assert [(p.deny, p.program, p.words) for p in programs] == [
        (False, "/usr/bin/git", ("git", "a b")),
        (True, None, ("gone",)),
    ]
    assert [v.value for v in variables] == ["HOME"]
    assert [(h.deny, h.value) for h in hosts] == [(False, "A.test:443"), (True, "b.test")]
    assert confinement.read_only == ("/opt/python",)
    assert confinement.policy_sha256 == policy.policy_sha256


def test_limits_are_lowered_and_never_raised() -> None:
    policy = read("limits: memory_mb=64, timeout_seconds=1.5, pids=9999\n")
    assert tightened(LIMITS, policy) == Limits(1.5, 64, 1.0, 256, 256, 1 << 20)
    assert compile_policy(policy, LIMITS, Files()).limits.memory_mb == 64


def test_ceiling_keeps_what_both_grant() -> None:
    both = intersect(read("read: .\nwrite: ./out\n"), read("read: ./data\nwrite: ./out/a\ndeny: read ./data/x\n"))
    confinement = compile_policy(both, LIMITS, Files("/w/data/x", "/w/out/a"))
    assert [(g.path, g.writable) for g in confinement.files] == [("/w/data", False), ("/w/out/a", True)]
    assert [d.path for d in confinement.file_denials if d.hidden] == ["/w/data/x"]
    assert len(confinement.programs) == 2


PATHS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(
    lambda parts: "/w/" + "/".join(parts) if parts else "/w"
)
RULES = st.lists(
    st.tuples(st.sampled_from(["read", "write"]), PATHS).map(lambda rule: f"{rule[0]}: {rule[1]}"), max_size=5
)


@given(RULES, RULES, PATHS)
def test_grants_of_two_policies_say_what_their_decisions_say(first: list[str], second: list[str], path: str) -> None:
    both = intersect(read("\n".join(first)), read("\n".join(second)))
    confinement = compile_policy(both, LIMITS, Files("/w/a/b/c"))
    above = [g for g in confinement.files if path == g.path or path.startswith(f"{g.path}/")]
    assert bool(above) == decide(both, Read(path)).allowed
    assert any(g.writable for g in above) == decide(both, Write(path)).allowed


def test_what_may_be_read_and_matches_a_pattern_for_writing_may_be_written() -> None:
    view = Files("/w/a.txt", "/w/data/x")
    assert grants("write: ./*.txt\nread: ./a.txt, ./data", view) == [
        ("/w", True, True, Layer.INTERPRETER),
        ("/w/a.txt", True, True, Layer.KERNEL),
        ("/w/data", False, True, Layer.KERNEL),
    ]
