# SPDX-License-Identifier: MIT
"""The part of the self-check that runs inside a box, as a program of its own: standard library only, Python >= 3.9.

Called with one JSON argument (what the host expects); prints one JSON list of [name, resource, passed, detail].
Each check tries the forbidden thing itself and only passes when it is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any, Optional

Problem = Optional[str]  # noqa: UP045 - evaluated when it runs, on Python 3.9 too
PR_GET_NO_NEW_PRIVS = 39
CHECKS: list[tuple[str, str, bool, Callable[[], Problem]]] = []
EXPECT: dict[str, Any] = {}


def check(resource: str, *, attached: bool = False) -> Callable[[Callable[[], Problem]], Callable[[], Problem]]:
    """Register a function: it returns None when the box holds, or a text that says what was possible. Those for
    `attached` boxes run where the box joined a network that was made for it."""

    def register(function: Callable[[], Problem]) -> Callable[[], Problem]:
        CHECKS.append((function.__name__, resource, attached, function))
        return function

    return register


def opens(path: str, flags: int) -> bool:
    """Whether the path can be opened that way."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def status(field: str) -> str:
    """A line of /proc/self/status."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return str(line.split(":", 1)[1].strip())
    return ""


def call(number: int, *arguments: int) -> int:
    """errno of a raw system call, 0 when it succeeded."""
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])
    return ctypes.get_errno() if result < 0 else 0


def prctl(option: int) -> int:
    """What prctl(2) answers to an option without arguments."""
    return int(ctypes.CDLL(None).prctl(option, 0, 0, 0, 0))


@check("filesystem")
def host_files_are_invisible() -> Problem:
    """The host made a file just for this."""
    canary = str(EXPECT["canary_file"])
    if opens(canary, os.O_RDONLY):
        return "read " + canary
    if EXPECT.get("image"):
        # All others are the image's own.
        return None
    private = ["/etc/shadow", "/root", "/var", "/home", "/run"]
    if not EXPECT.get("own_kernel"):
        private.append("/sys")
    # An interpreter below /home is shown, and with it the names above it.
    found = [p for p in private if os.path.lexists(p) and not any(d.startswith(p + "/") for d in EXPECT["shown"])]
    return "sees " + ", ".join(found) if found else None


@check("filesystem")
def system_directories_are_read_only() -> Problem:
    """Writing anywhere but in the box's own directories."""
    for directory in ("/usr", "/usr/lib", "/etc", "/", "/proc/sys/kernel"):
        path = os.path.join(directory, ".agentbox-check")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError:
            continue
        os.unlink(path)
        return "wrote to " + directory
    return None


@check("filesystem")
def kernel_settings_are_closed() -> Problem:
    """Files below /proc that act on the whole host."""
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches"):
        if opens(path, os.O_WRONLY):
            return "opened " + path + " for writing"
    with contextlib.suppress(OSError):
        fd = os.open("/proc/kcore", os.O_RDONLY)
        try:
            if os.read(fd, 1):
                return "read /proc/kcore"
        finally:
            os.close(fd)
    return None


@check("filesystem")
def other_processes_are_invisible() -> Problem:
    """Only this program and the box's init may be seen."""
    seen = [name for name in os.listdir("/proc") if name.isdigit()]
    return f"sees {len(seen)} processes" if len(seen) > 2 else None


@check("filesystem")
def no_privilege_is_left() -> Problem:
    """Capabilities, no_new_privs, seccomp, ids."""
    for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        # gVisor does not tell all of them.
        if int(status(field) or "0", 16):
            return field + " is " + status(field)
    if prctl(PR_GET_NO_NEW_PRIVS) != 1:
        return "no_new_privs is off"
    if status("Seccomp") != "2" and not EXPECT.get("own_kernel"):
        return "no system call filter"
    return "uid 0" if os.getuid() == 0 or os.geteuid() == 0 else None


def _only_writes(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


@check("filesystem")
def no_foreign_descriptors() -> Problem:
    """Only stdin, stdout and stderr. A warm interpreter also has a pipe into which it writes its exit code."""
    extra = []
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                report = stat.S_ISFIFO(os.fstat(int(name)).st_mode) and _only_writes(int(name))
                if not (int(name) >= 1000 and report):
                    extra.append(name)
    return "descriptors " + ", ".join(extra) if extra else None


@check("filesystem")
def kernel_doors_are_shut() -> Problem:
    """System calls that a box has no use for. A box with a kernel of its own has that one's alone, and must not be
    able to mount anything."""
    tables = {
        "x86_64": {"mount": 165, "unshare": 272, "ptrace": 101, "bpf": 321, "keyctl": 250, "io_uring_setup": 425,
                   "userfaultfd": 323, "perf_event_open": 298, "setns": 308, "add_key": 248, "clone3": 435},
        "aarch64": {"mount": 40, "unshare": 97, "ptrace": 117, "bpf": 280, "keyctl": 219, "io_uring_setup": 425,
                    "userfaultfd": 282, "perf_event_open": 241, "setns": 268, "add_key": 217, "clone3": 435},
    }  # fmt: skip
    table = tables.get(os.uname().machine, {})
    if EXPECT.get("own_kernel"):
        if os.uname().release == EXPECT["host_release"]:
            return "the kernel is the host's"
        table = {name: number for name, number in table.items() if name == "mount"}
    # The one kernel looks at rights first, the other at what it was given.
    refusals = (errno.EINVAL, errno.EFAULT) if EXPECT.get("own_kernel") else ()
    for name, number in table.items():
        # CLONE_NEWUSER for unshare, harmless or invalid arguments for the rest.
        arguments = (0x10000000, 0, 0, 0) if name == "unshare" else (0, 0, 0, 0)
        if call(number, *arguments) not in (errno.EPERM, errno.ENOSYS, *refusals):
            return name + " is reachable"
    return None


@check("network")
def host_services_are_unreachable() -> Problem:
    """A listener on the host's loopback and an abstract socket, both made for this."""
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", EXPECT["tcp_port"])),
        (socket.AF_UNIX, "\0" + EXPECT["abstract_name"]),
    ):
        with socket.socket(family) as sock:
            sock.settimeout(2)
            try:
                sock.connect(address)
            except OSError:
                continue
            return f"connected to the host's {address!r}"
    return None


@check("network")
def no_way_out() -> Problem:
    """No route, no interface but lo, no raw access."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"x", ("192.0.2.1", 9))
            return "a datagram to 192.0.2.1 was accepted"
        except OSError:
            pass
    names = [name for _, name in socket.if_nameindex()]
    if names != ["lo"]:
        return "interfaces " + ", ".join(names)
    for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW), (40, 1), (38, 5)):
        try:
            socket.socket(family, kind, 1 if kind == socket.SOCK_RAW else 0).close()
        except OSError:
            continue
        return f"socket family {family}, type {kind} can be made"
    return None


@check("network")
def own_loopback_works() -> Problem:
    """A server and its client inside the box can talk."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        client.settimeout(5)
        client.connect(server.getsockname())
    return None


def _listeners() -> list[tuple[int, int, str, int]]:
    """(family, type, address, port) of what listens in this namespace."""
    if EXPECT.get("own_kernel"):
        return _occupied("198.18.0.1", (53, *range(65000, 65536)))
    found = []
    for table, family, kind in (
        ("tcp", socket.AF_INET, socket.SOCK_STREAM),
        ("udp", socket.AF_INET, socket.SOCK_DGRAM),
        ("tcp6", socket.AF_INET6, socket.SOCK_STREAM),
        ("udp6", socket.AF_INET6, socket.SOCK_DGRAM),
    ):
        lines = []
        with contextlib.suppress(OSError), open("/proc/self/net/" + table) as file:
            lines = file.read().splitlines()[1:]
        for line in lines:
            address, port = line.split()[1].split(":")
            words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
            found.append((int(family), int(kind), socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return found


def _occupied(address: str, ports: tuple[int, ...]) -> list[tuple[int, int, str, int]]:
    """As `_listeners`, where the kernel shows its own sockets only: what cannot be bound there."""
    found = []
    for port in ports:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as sock:
                try:
                    sock.bind((address, port))
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        found.append((int(socket.AF_INET), int(kind), address, port))
    return found


@check("network", attached=True)
def the_gateway_s_sockets_cannot_be_taken() -> Problem:
    """Whatever listens in this namespace before any program of the guest was made for the gateway."""
    listeners = _listeners()
    for family, kind, address, port in listeners:
        for anywhere in (address, "0.0.0.0" if family == socket.AF_INET else "::"):  # noqa: S104 - an attack
            with socket.socket(family, kind) as thief:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                try:
                    thief.bind((anywhere, port))
                    if kind == socket.SOCK_STREAM:
                        thief.listen(1)
                except OSError:
                    continue
                return f"listens at {anywhere}, port {port}, in place of the gateway"
    return None if listeners else "nobody listens for this box's connections"


@check("network", attached=True)
def the_network_cannot_be_changed() -> Problem:
    """Routes, addresses, interfaces and rules belong to who made the namespace."""
    requests = (
        # kind, flags, payload: delete the route to everything; set lo down; remove its first address
        ("route", 25, bytes([socket.AF_INET, 0, 0, 0, 255, 0, 255, 0]) + bytes(4)),
        ("interface", 16, bytes(4) + (1).to_bytes(4, sys.byteorder) + bytes(4) + (1).to_bytes(4, sys.byteorder)),
        ("address", 21, bytes([socket.AF_INET, 8, 0, 0]) + (1).to_bytes(4, sys.byteorder)
         + (8).to_bytes(2, sys.byteorder) + (2).to_bytes(2, sys.byteorder) + bytes([127, 0, 0, 1])),
    )  # fmt: skip
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
        route.settimeout(5)
        for name, kind, payload in requests:
            header = (16 + len(payload)).to_bytes(4, sys.byteorder) + kind.to_bytes(2, sys.byteorder)
            route.send(header + (5).to_bytes(2, sys.byteorder) + bytes(8) + payload)
            answer = route.recv(4096)
            code = int.from_bytes(answer[16:20], sys.byteorder, signed=True)
            if code not in (-errno.EPERM, -errno.EACCES):
                return f"a change of the {name} is answered with {code}"
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12).close()
        return "netfilter's socket can be opened"
    for option, value in ((19, 1), (36, 1)):  # IP_TRANSPARENT of IPPROTO_IP, SO_MARK of SOL_SOCKET
        level = socket.IPPROTO_IP if option == 19 else socket.SOL_SOCKET
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.setsockopt(level, option, value)
            # A kernel of the box's own may say yes and do nothing.
            if not EXPECT.get("own_kernel") or sock.getsockopt(level, option):
                return f"socket option {option} can be set"
    settings = "/proc/sys/net/ipv4/"
    open_ones = [name for name in ("ip_forward", "tcp_syn_retries", "conf/lo/forwarding") if opens(settings + name, 1)]
    return "opened settings of the network for writing: " + ", ".join(open_ones) if open_ones else None


@check("disk")
def disk_is_bounded() -> Problem:
    """Writes twice the limit into each writable directory, all at once."""
    written, limit = 0, EXPECT["disk_mb"]
    block = b"\1" * (1 << 20)
    made = []
    try:
        for directory in EXPECT["writable"]:
            path = os.path.join(directory, "fill")
            made.append(path)
            try:
                with open(path, "wb", buffering=0) as file:
                    while written <= 2 * limit:
                        written += file.write(block) >> 20
            except OSError:
                continue
    finally:
        for path in made:
            with contextlib.suppress(OSError):
                os.unlink(path)
    return f"wrote {written} MB with a limit of {limit}" if written > limit else None


@check("pids")
def processes_are_bounded() -> Problem:
    """Forks past the limit; every child sleeps until it is killed."""
    children = []
    try:
        for _ in range(EXPECT["pids"] + 8):
            pid = os.fork()
            if pid == 0:
                os.read(EXPECT["hold"], 1)
                os._exit(0)
            children.append(pid)
    except OSError:
        return None
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return f"{len(children) + 1} processes with a limit of {EXPECT['pids']}"


def main() -> None:
    """Run the checks that the host asks for."""
    EXPECT.update(json.loads(sys.argv[1]))
    found = []
    for name, resource, attached, function in CHECKS:
        if resource not in EXPECT["resources"] or (attached and not EXPECT.get("attached")):
            continue
        if resource == "pids":
            EXPECT["hold"], _keep_open = os.pipe()
        try:
            problem = function()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        found.append([name, resource, problem is None, problem or ""])
    sys.stdout.write(json.dumps(found))


main()
