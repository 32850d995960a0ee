# SPDX-License-Identifier: MIT
"""The guest's system call filter: a pure builder of classic BPF, and its installation.

The filter is a deny list with a horizon: calls newer than HORIZON answer ENOSYS, so that a kernel upgrade opens
nothing and libraries take their fallback. Programs probe some calls and only fall back on ENOSYS (clone3, openat2,
io_uring), others report EPERM well; each list says which answer it gives.
"""

from __future__ import annotations

import errno
import os
import struct

from agentbox.linux import foreign
from agentbox.linux.process import forbid_new_privileges
from agentbox.linux.syscalls import number, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Linux 6.7; everything newer is unknown to this filter except what is named in KNOWN_AFTER_HORIZON.
HORIZON = 456
KNOWN_AFTER_HORIZON = ("mseal",)

# Answered with EPERM: kernel attack surface and the powers of an administrator.
REFUSED = (
    "_sysctl", "acct", "add_key", "bpf", "clock_settime", "create_module", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_kernel_syms", "init_module", "ioperm", "iopl",
    "kcmp", "kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "migrate_pages", "modify_ldt",
    "mount", "mount_setattr", "move_mount", "move_pages", "nfsservctl", "open_by_handle_at", "open_tree",
    "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "process_vm_readv", "process_vm_writev",
    "ptrace", "query_module", "quotactl", "quotactl_fd", "reboot", "request_key", "set_mempolicy", "setdomainname",
    "sethostname", "setns", "settimeofday", "swapoff", "swapon", "sysfs", "syslog", "umount2", "uselib",
    "userfaultfd", "ustat", "vhangup",
)  # fmt: skip

# Answered with ENOSYS: callers have a fallback. clone3 and openat2 take their flags by pointer, which a filter
# cannot read, so the forms whose flags it can read stand in for them.
ABSENT = (
    "afs_syscall", "clone3", "getpmsg", "io_uring_enter", "io_uring_register", "io_uring_setup", "memfd_secret",
    "openat2", "putpmsg", "security", "tuxcall", "vserver",
)  # fmt: skip

# Calls whose arguments matter.
_LOOKED_AT = (
    "chmod", "clone", "creat", "fchmod", "fchmodat", "fchmodat2", "ioctl", "mknod", "mknodat", "open", "openat",
    "personality", "setsockopt", "socket", "unshare",
)  # fmt: skip
# So many numbers are compared one after the other.
_COMPARED = 6

# CLONE_NEWTIME is left out: in clone(2) its bit belongs to the exit signal, and only unshare knows it.
_NAMESPACES = 0x7E020000
_CLONE_NEWTIME = 0x80

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
# Any, ICMP echo, TCP, UDP, ICMPv6 echo: what ordinary programs open; SCTP, DCCP, MPTCP and the like are not needed.
_PROTOCOLS = (0, 1, 6, 17, 58)
_MPTCP = 262
# The kernel refuses these without a capability, whatever the protocol.
_SOCK_RAW, _SOCK_PACKET = 3, 10
_SOCK_KIND = 0xF
# Whoever is last to close a socket that lingers waits for its peer, and a guest can send sockets to the host. To set it
# succeeds and does nothing.
_SOL_SOCKET, _SO_LINGER = 1, 13
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Whoever may write to a directory of btrfs may make subvolumes there, which no limit of a workspace holds. FICLONE,
# FICLONERANGE and FIDEDUPERANGE have its kind too, but are for files of any file system.
_IOCTL_KIND, _BTRFS = 0xFF00, 0x9400
_SHARING = (0x40049409, 0x4020940D, 0xC0189436)
_PERSONALITIES = (0, 0xFFFFFFFF)
_SET_ID = 0o6000
_S_IFMT, _S_IFCHR, _S_IFBLK = 0o170000, 0o020000, 0o060000
_O_CREAT_OR_TMPFILE = 0o100 | 0o20000000

_LD, _JEQ, _JGE, _JGT, _JSET, _AND, _RET = 0x20, 0x15, 0x35, 0x25, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_INSTRUCTION = struct.Struct("=HBBI")


def _argument(index: int) -> int:
    """Offset of the low half of an argument in struct seccomp_data (both machines are little-endian)."""
    return 16 + 8 * index


class Program:
    """Instructions of classic BPF whose jumps name labels; they go only forward and at most 255 instructions far."""

    def __init__(self) -> None:
        self._code: list[tuple[int, str | None, str | None, int]] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the next instruction."""
        self._labels[name] = len(self._code)

    def load(self, offset: int) -> None:
        """Load four bytes of struct seccomp_data."""
        self._code.append((_LD, None, None, offset))

    def mask(self, bits: int) -> None:
        """Keep these bits of what is loaded."""
        self._code.append((_AND, None, None, bits))

    def jump(self, test: int, value: int, then: str | None, otherwise: str | None = None) -> None:
        """Go to one label where the test holds, to the other where it does not; None is the next instruction."""
        self._code.append((test, then, otherwise, value))

    def answer(self, value: int) -> None:
        """End with this action."""
        self._code.append((_RET, None, None, value))

    def assemble(self) -> bytes:
        """The instructions as an array of struct sock_filter. Raises ValueError for a jump that is too far."""
        out = bytearray()
        for index, (operation, then, otherwise, value) in enumerate(self._code):
            offsets = [0 if name is None else self._labels[name] - index - 1 for name in (then, otherwise)]
            if not all(0 <= offset <= 255 for offset in offsets):
                raise ValueError(f"jump out of range at instruction {index}: {then} {otherwise} {offsets}")
            out += _INSTRUCTION.pack(operation, *offsets, value)
        return bytes(out)


def socket_refusal(family: int, kind: int, protocol: int) -> int:
    """The errno with which a box's socket(2) fails, 0 when it does not. Pure."""
    if family == _AF_UNIX:
        return 0
    if family == _AF_NETLINK:
        return 0 if protocol == _NETLINK_ROUTE else errno.EPROTONOSUPPORT
    if family not in (_AF_INET, _AF_INET6):
        return errno.EAFNOSUPPORT
    if kind & _SOCK_KIND in (_SOCK_RAW, _SOCK_PACKET):
        return errno.EPERM
    return 0 if protocol in _PROTOCOLS else errno.EPROTONOSUPPORT


def ask_about_sockets(program: Program, ask: int, machine: str) -> None:
    """Answer `ask` to every socket(2) that `socket_refusal` refuses, and go on for every other call, with its number
    loaded. But MPTCP is refused at once: runtimes try it before TCP, and mean nothing by it."""
    program.jump(_JEQ, _known("socket", machine), None, "others")
    program.load(_argument(0))
    program.jump(_JEQ, _AF_UNIX, "fine")
    program.jump(_JEQ, _AF_INET, "kind")
    program.jump(_JEQ, _AF_INET6, "kind")
    program.jump(_JEQ, _AF_NETLINK, None, "ask")
    program.load(_argument(2))
    program.jump(_JEQ, _NETLINK_ROUTE, "fine", "ask")
    program.label("kind")
    program.load(_argument(1))
    program.mask(_SOCK_KIND)
    program.jump(_JEQ, _SOCK_RAW, "ask")
    program.jump(_JEQ, _SOCK_PACKET, "ask")
    program.load(_argument(2))
    for value in _PROTOCOLS:
        program.jump(_JEQ, value, "fine")
    program.jump(_JEQ, _MPTCP, "mptcp")
    program.label("ask")
    program.answer(ask)
    program.label("mptcp")
    program.answer(_ERRNO | errno.EPROTONOSUPPORT)
    program.label("fine")
    program.answer(_ALLOW)
    program.label("others")


def leaving_sockets(program: bytes, machine: str | None = None) -> bytes:
    """The guest filter for a process whose other filter has `ask_about_sockets`: an errno of this one would come
    before the question. Pure."""
    machine = machine or os.uname().machine
    wanted = _known("socket", machine)
    for index, (operation, then, _, value) in enumerate(_INSTRUCTION.iter_unpack(program)):
        if operation == _JEQ and value == wanted:
            at = (index + 1 + then) * _INSTRUCTION.size
            return program[:at] + _INSTRUCTION.pack(_RET, 0, 0, _ALLOW) + program[at + _INSTRUCTION.size :]
    raise ValueError("the filter does not look at sockets")


def _known(name: str, machine: str) -> int:
    found = number(name, machine)
    assert found is not None
    return found


def _search(program: Program, labels: Sequence[tuple[int, str]]) -> None:
    """Go to the label of the number that is loaded, or allow a call that has none. `labels` are in order."""
    if len(labels) > _COMPARED:
        middle = len(labels) // 2
        above = f"from {labels[middle][0]}"
        program.jump(_JGE, labels[middle][0], above)
        _search(program, labels[:middle])
        program.label(above)
        _search(program, labels[middle:])
        return
    for nr, label in labels:
        program.jump(_JEQ, nr, label)
    program.answer(_ALLOW)


def build(machine: str | None = None) -> bytes:
    """The guest filter for `machine` (default: this one) as an array of struct sock_filter. Pure."""
    machine = machine or os.uname().machine
    program = Program()
    labels: dict[int, str] = {}
    looked_at = (((name,), name) for name in _LOOKED_AT)
    for names, label in ((ABSENT, "absent_early"), (REFUSED, "refused_early"), *looked_at):
        labels |= {nr: label for name in names if (nr := number(name, machine)) is not None}

    program.load(4)
    program.jump(_JEQ, ARCHITECTURES[machine], None, "absent_early")
    program.load(0)
    if machine == "x86_64":
        program.jump(_JGE, _X32_BIT, "absent_early")
    program.jump(_JGT, HORIZON, "beyond")
    # When a filter is put on, the kernel asks it about every call there is; a search answers in a tenth of the steps.
    _search(program, sorted(labels.items()))

    program.label("absent_early")
    program.answer(_ERRNO | errno.ENOSYS)
    program.label("refused_early")
    program.answer(_ERRNO | errno.EPERM)

    program.label("beyond")
    for name in KNOWN_AFTER_HORIZON:
        if (nr := number(name, machine)) is not None:
            program.jump(_JEQ, nr, "allowed")
    program.answer(_ERRNO | errno.ENOSYS)

    for name, flags, mode in (("open", 1, 2), ("openat", 2, 3)):
        program.label(name)
        program.load(_argument(flags))
        program.jump(_JSET, _O_CREAT_OR_TMPFILE, None, "allowed")
        program.load(_argument(mode))
        program.jump(_JSET, _SET_ID, "refused", "allowed")
    for name, mode in (("creat", 1), ("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        program.label(name)
        program.load(_argument(mode))
        program.jump(_JSET, _SET_ID, "refused", "allowed")
    for name, mode in (("mknod", 1), ("mknodat", 2)):
        program.label(name)
        program.load(_argument(mode))
        program.jump(_JSET, _SET_ID, "refused")
        program.mask(_S_IFMT)
        program.jump(_JEQ, _S_IFCHR, "refused")
        program.jump(_JEQ, _S_IFBLK, "refused", "allowed")
    program.label("ioctl")
    program.load(_argument(1))
    program.jump(_JEQ, _TIOCSTI, "refused")
    program.jump(_JEQ, _TIOCLINUX, "refused")
    for value in _SHARING:
        program.jump(_JEQ, value, "allowed")
    program.mask(_IOCTL_KIND)
    program.jump(_JEQ, _BTRFS, None, "allowed")
    program.answer(_ERRNO | errno.ENOTTY)
    program.label("setsockopt")
    program.load(_argument(1))
    program.jump(_JEQ, _SOL_SOCKET, None, "allowed")
    program.load(_argument(2))
    program.jump(_JEQ, _SO_LINGER, None, "allowed")
    program.answer(_ERRNO)
    program.label("clone")
    program.load(_argument(0))
    program.jump(_JSET, _NAMESPACES, "refused", "allowed")
    program.label("unshare")
    program.load(_argument(0))
    program.jump(_JSET, _NAMESPACES | _CLONE_NEWTIME, "refused", "allowed")
    program.label("personality")
    program.load(_argument(0))
    for value in _PERSONALITIES:
        program.jump(_JEQ, value, "allowed")
    program.answer(_ERRNO | errno.EPERM)
    program.label("socket")
    program.load(_argument(0))
    program.jump(_JEQ, _AF_UNIX, "allowed")
    program.jump(_JEQ, _AF_INET, "protocol")
    program.jump(_JEQ, _AF_INET6, "protocol")
    program.jump(_JEQ, _AF_NETLINK, "netlink")
    program.label("family")
    program.answer(_ERRNO | errno.EAFNOSUPPORT)
    program.label("netlink")
    program.load(_argument(2))
    program.jump(_JEQ, _NETLINK_ROUTE, "allowed")
    program.answer(_ERRNO | errno.EPROTONOSUPPORT)
    program.label("protocol")
    program.load(_argument(2))
    for value in _PROTOCOLS:
        program.jump(_JEQ, value, "allowed")
    program.answer(_ERRNO | errno.EPROTONOSUPPORT)

    program.label("allowed")
    program.answer(_ALLOW)
    program.label("refused")
    program.answer(_ERRNO | errno.EPERM)
    return program.assemble()


def build_without_set_id(machine: str | None = None) -> bytes:
    """A filter that refuses to make devices and files that run as their owner, and nothing else. Pure."""
    machine = machine or os.uname().machine
    program = Program()
    modes = {"open": 2, "openat": 3, "creat": 1, "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
    nodes = {"mknod": 1, "mknodat": 2}
    program.load(4)
    program.jump(_JEQ, ARCHITECTURES[machine], None, "refused")
    program.load(0)
    for name in (*modes, *nodes):
        nr = number(name, machine)
        if nr is not None:
            program.jump(_JEQ, nr, name)
    program.answer(_ALLOW)
    for name, mode in modes.items():
        program.label(name)
        if name in ("open", "openat"):
            program.load(_argument(mode - 1))
            program.jump(_JSET, _O_CREAT_OR_TMPFILE, None, "allowed")
        program.load(_argument(mode))
        program.jump(_JSET, _SET_ID, "refused", "allowed")
    for name, mode in nodes.items():
        program.label(name)
        program.load(_argument(mode))
        program.jump(_JSET, _SET_ID, "refused")
        program.mask(_S_IFMT)
        program.jump(_JEQ, _S_IFCHR, "refused")
        program.jump(_JEQ, _S_IFBLK, "refused", "allowed")
    program.label("allowed")
    program.answer(_ALLOW)
    program.label("refused")
    program.answer(_ERRNO | errno.EPERM)
    return program.assemble()


class SockFprog(foreign.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", foreign.c_ushort), ("filter", foreign.c_void_p))


_SECCOMP_SET_MODE_FILTER = 1


def install(program: bytes) -> None:
    """Put the filter on this process and all its descendants; it cannot be taken off."""
    forbid_new_privileges()
    buffer = foreign.create_string_buffer(program, len(program))
    fprog = SockFprog(len(program) // 8, foreign.addressof(buffer))
    syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, foreign.byref(fprog))
