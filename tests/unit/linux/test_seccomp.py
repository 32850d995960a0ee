# SPDX-License-Identifier: MIT
"""The guest filter, judged by an interpreter of classic BPF, for both machines and without installing it."""

from __future__ import annotations

import ctypes.util
import errno
import functools
import platform
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentbox.linux import notify, seccomp
from agentbox.linux.syscalls import MACHINES, NUMBERS, number

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW = 0
ASKED = -1
LONG = (1 << 64) - 1


@functools.cache
def instructions(machine: str) -> list[tuple[int, ...]]:
    program = seccomp.build(machine)
    return [struct.unpack_from("=HBBI", program, offset) for offset in range(0, len(program), 8)]


@functools.cache
def filters_beside_a_judge(machine: str) -> tuple[list[tuple[int, ...]], ...]:
    programs = notify.build(("execve", "execveat"), machine), seccomp.leaving_sockets(seccomp.build(machine), machine)
    return tuple([struct.unpack_from("=HBBI", code, offset) for offset in range(0, len(code), 8)] for code in programs)


def beside_a_judge(machine: str, nr: int, *arguments: int, arch: int | None = None) -> int:
    """The same for both filters of a box with an exec judge; ASKED when the judge answers. As in the kernel an errno
    comes before a question."""
    answers = [judge(machine, nr, *arguments, arch=arch, code=code) for code in filters_beside_a_judge(machine)]
    return max(answers) or min(answers)


def judge(
    machine: str, nr: int, *arguments: int, arch: int | None = None, code: list[tuple[int, ...]] | None = None
) -> int:
    """0 when the filter lets the call through, else the errno that it answers."""
    padded = [value & LONG for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<iIQ6Q", nr if nr < 1 << 31 else nr - (1 << 32), arch or ARCH[machine], 0, *padded)
    code = code or instructions(machine)
    accumulator, index = 0, 0
    while True:
        operation, then, otherwise, value = code[index]
        index += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            if value == 0x7FFF0000:
                return ALLOW
            if value == 0x7FC00000:
                return ASKED
            assert value & 0xFFFF0000 == 0x00050000
            return value & 0xFFFF
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x25: accumulator > value,
                0x45: bool(accumulator & value),
            }[operation]
            index += then if holds else otherwise


def call(machine: str, name: str, *arguments: int) -> int:
    nr = number(name, machine)
    assert nr is not None
    return judge(machine, nr, *arguments)


def has(machine: str, name: str) -> bool:
    return number(name, machine) is not None


every_machine = pytest.mark.parametrize("machine", MACHINES)


@every_machine
@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_a_call_that_only_an_administrator_needs_is_refused(machine: str, name: str) -> None:
    if has(machine, name):
        assert call(machine, name) == errno.EPERM


@every_machine
@pytest.mark.parametrize("name", seccomp.ABSENT)
def test_a_call_with_a_fallback_looks_absent(machine: str, name: str) -> None:
    if has(machine, name):
        assert call(machine, name) == errno.ENOSYS


@every_machine
@pytest.mark.parametrize("nr", [457, 458, 461, 463, 500, 1000, 0x3FFFFFFF])
def test_a_call_that_is_newer_than_the_filter_looks_absent(machine: str, nr: int) -> None:
    assert judge(machine, nr) == errno.ENOSYS


@every_machine
def test_mseal_is_known_although_it_is_newer(machine: str) -> None:
    assert call(machine, "mseal") == ALLOW


@every_machine
def test_calls_of_another_architecture_look_absent(machine: str) -> None:
    for nr in (0, 1, 11, 26, 102, 120):
        assert judge(machine, nr, arch=I386) == errno.ENOSYS


def test_x32_calls_look_absent() -> None:
    for nr in (0, 39, 101, 165, 520, 521, 545):
        assert judge("x86_64", 0x40000000 | nr) == errno.ENOSYS
    assert judge("x86_64", 0xFFFFFFFF) == errno.ENOSYS


@every_machine
@pytest.mark.parametrize("flag", [0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000])
def test_no_namespace_can_be_made(machine: str, flag: int) -> None:
    assert call(machine, "clone", flag | 17) == errno.EPERM
    assert call(machine, "unshare", flag) == errno.EPERM


@every_machine
def test_a_time_namespace_cannot_be_made(machine: str) -> None:
    assert call(machine, "unshare", 0x80) == errno.EPERM


@every_machine
def test_threads_and_processes_can_be_made(machine: str) -> None:
    assert call(machine, "clone", 0x3D0F00) == ALLOW
    assert call(machine, "clone", 0x01200011) == ALLOW
    assert call(machine, "clone", 0x4111) == ALLOW
    assert call(machine, "unshare", 0x400) == ALLOW


@every_machine
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((1, 1, 0), ALLOW),
        ((2, 1, 0), ALLOW),
        ((2, 1 | 0x80800, 6), ALLOW),
        ((10, 2, 17), ALLOW),
        ((2, 2, 1), ALLOW),
        ((16, 3, 0), ALLOW),
        ((16, 3, 12), errno.EPROTONOSUPPORT),
        ((16, 3, 15), errno.EPROTONOSUPPORT),
        ((2, 1, 132), errno.EPROTONOSUPPORT),
        ((2, 1, 262), errno.EPROTONOSUPPORT),
        ((2, 6, 33), errno.EPROTONOSUPPORT),
        ((17, 3, 768), errno.EAFNOSUPPORT),
        ((38, 5, 0), errno.EAFNOSUPPORT),
        ((40, 1, 0), errno.EAFNOSUPPORT),
        ((44, 3, 0), errno.EAFNOSUPPORT),
        ((29, 3, 1), errno.EAFNOSUPPORT),
        ((0xFFFFFFFF, 1, 0), errno.EAFNOSUPPORT),
    ],
)
def test_only_the_ordinary_socket_families_exist(machine: str, arguments: tuple[int, ...], answer: int) -> None:
    assert call(machine, "socket", *arguments) == answer


@every_machine
@given(
    st.sampled_from([0, 1, 2, 10, 16, 17, 38, 40, LONG]),
    st.sampled_from([1, 2, 3, 5, 10, 3 | 0x80800]),
    st.integers(0, 300),
)
def test_beside_a_judge_it_answers_for_exactly_the_sockets_that_no_box_has(
    machine: str, family: int, kind: int, protocol: int
) -> None:
    nr = number("socket", machine)
    assert nr is not None
    answer = beside_a_judge(machine, nr, family, kind, protocol)
    refusal = seccomp.socket_refusal(family, kind, protocol)
    if answer == ASKED:
        assert refusal
    else:
        # MPTCP is tried before TCP and means nothing.
        assert answer == refusal
        assert answer == ALLOW or protocol == 262
    alone = judge(machine, nr, family, kind, protocol)
    raw = refusal == errno.EPERM
    assert alone == refusal or (raw and alone in (ALLOW, errno.EPROTONOSUPPORT))


@every_machine
def test_beside_a_judge_everything_else_is_as_without_one(machine: str) -> None:
    for nr in {*range(-1, 1100), 0x40000000, 0x3FFFFFFF} - {-1}:
        if nr == number("socket", machine):
            continue
        asked = nr in (number("execve", machine), number("execveat", machine))
        for arguments in ((), (0x20000000, 0x5412, 0o100, 0o6755), (3, 0o4755, 0o4755)):
            assert beside_a_judge(machine, nr, *arguments) == (ASKED if asked else judge(machine, nr, *arguments))
    assert beside_a_judge(machine, 41, arch=I386) == errno.ENOSYS


@every_machine
def test_a_terminal_cannot_be_fed(machine: str) -> None:
    assert call(machine, "ioctl", 0, 0x5412) == errno.EPERM
    assert call(machine, "ioctl", 0, 0x541C) == errno.EPERM
    assert call(machine, "ioctl", 0, 0x5401) == ALLOW
    # The kernel looks at the low half only, and so must the filter.
    assert call(machine, "ioctl", 0, 0x1_0000_5412) == errno.EPERM


MODES = [0o4755, 0o2755, 0o6755, 0o4000]


@every_machine
@pytest.mark.parametrize("mode", MODES)
def test_no_file_becomes_setuid_or_setgid(machine: str, mode: int) -> None:
    create = 0o100 | 1
    tmpfile = 0o20200000 | 2
    wanted = {
        "chmod": (0, mode),
        "fchmod": (3, mode),
        "fchmodat": (3, 0, mode),
        "fchmodat2": (3, 0, mode),
        "creat": (0, mode),
        "open": (0, create, mode),
        "openat": (3, 0, create, mode),
        "mknod": (0, 0o100000 | mode),
        "mknodat": (3, 0, 0o100000 | mode),
    }
    for name, arguments in wanted.items():
        if has(machine, name):
            assert call(machine, name, *arguments) == errno.EPERM, name
    assert call(machine, "openat", 3, 0, tmpfile, mode) == errno.EPERM


@every_machine
def test_a_mode_that_open_does_not_look_at_does_not_matter(machine: str) -> None:
    assert call(machine, "openat", 3, 0, 0, 0o7777) == ALLOW
    assert call(machine, "openat", 3, 0, 0o100 | 1, 0o644) == ALLOW


@every_machine
@pytest.mark.parametrize(("kind", "answer"), [(0o020000, errno.EPERM), (0o060000, errno.EPERM), (0o010000, ALLOW)])
def test_device_nodes_cannot_be_made_but_fifos_can(machine: str, kind: int, answer: int) -> None:
    assert call(machine, "mknodat", 3, 0, kind | 0o666) == answer


@every_machine
def test_the_personality_can_be_read_but_not_changed(machine: str) -> None:
    assert call(machine, "personality", 0xFFFFFFFF) == ALLOW
    assert call(machine, "personality", 0) == ALLOW
    assert call(machine, "personality", 0x0400000) == errno.EPERM
    assert call(machine, "personality", 8) == errno.EPERM


@pytest.mark.parametrize(
    ("machine", "nr"),
    # read, write, mmap, getpid, futex, exit_group, fstatat, rseq; the same on the other machine
    [
        *(("x86_64", nr) for nr in (0, 1, 9, 39, 202, 231, 262, 334)),
        *(("aarch64", nr) for nr in (63, 64, 222, 172, 98, 94, 79, 293)),
    ],
)
def test_everyday_calls_pass(machine: str, nr: int) -> None:
    assert judge(machine, nr) == ALLOW


def test_numbers_agree_with_libseccomp() -> None:
    library = ctypes.util.find_library("seccomp")
    if library is None:
        pytest.skip("libseccomp is not installed (apt-get install libseccomp2)")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    resolve.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    differing = {}
    for name in NUMBERS:
        for machine in MACHINES:
            theirs = resolve(ARCH[machine], name.encode())
            ours = number(name, machine)
            # Negative: unknown to that release of the library, or not on that machine.
            if theirs >= 0 and theirs != ours:
                differing[name, machine] = (ours, theirs)
    assert differing == {}


def test_a_machine_without_a_table_is_refused() -> None:
    with pytest.raises(OSError, match="no system call table for riscv64"):
        number("mount", "riscv64")


def test_this_machine_has_a_filter() -> None:
    if platform.machine() in MACHINES:
        assert len(seccomp.build()) % 8 == 0


@functools.cache
def filters_with_a_checkpoint(machine: str) -> tuple[list[tuple[int, ...]], ...]:
    asking = notify.build(("execve", "execveat"), machine, changes=True)
    programs = asking, seccomp.leaving_sockets(seccomp.build(machine), machine)
    return tuple([struct.unpack_from("=HBBI", code, offset) for offset in range(0, len(code), 8)] for code in programs)


def before_a_checkpoint(machine: str, name: str, *arguments: int) -> int:
    """What both filters of a box that takes a checkpoint answer together."""
    nr = number(name, machine)
    assert nr is not None
    answers = [judge(machine, nr, *arguments, code=code) for code in filters_with_a_checkpoint(machine)]
    return max(answers) or min(answers)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", notify.CHANGING)
def test_before_a_checkpoint_every_call_that_can_change_a_file_is_asked_about(machine: str, name: str) -> None:
    if number(name, machine) is not None:
        assert before_a_checkpoint(machine, name) == ASKED
        assert notify.changes_files(name, (0, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", notify.OPENING)
@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        (0, False),
        (0o2000000 | 0o200000, False),
        (1, True),
        (2, True),
        (0o100, True),
        (0o1000, True),
        (0o20200002, True),
    ],
    ids=["reading", "a directory", "O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"],
)
def test_before_a_checkpoint_an_open_is_asked_about_by_its_flags(
    machine: str, name: str, flags: int, asked: bool
) -> None:
    if number(name, machine) is None:
        return
    arguments = [0, 0, 0, 0, 0, 0]
    arguments[notify.OPENING[name]] = flags
    assert before_a_checkpoint(machine, name, *arguments) == (ASKED if asked else ALLOW)
    assert notify.changes_files(name, tuple(arguments)) is asked


@pytest.mark.parametrize("machine", MACHINES)
def test_what_could_change_files_unasked_is_not_there_before_a_checkpoint_either(machine: str) -> None:
    for name in ("openat2", "io_uring_setup", "open_by_handle_at", "mount", "swapon", "fsopen", "open_tree"):
        assert before_a_checkpoint(machine, name) > 0
    assert before_a_checkpoint(machine, "fchmodat", 0, 0, 0o4755) == errno.EPERM
    for name in ("execve", "execveat"):
        assert before_a_checkpoint(machine, name) == ASKED
