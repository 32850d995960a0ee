# SPDX-License-Identifier: MIT
"""Attacks on the kernel's surface: namespaces, mounts, system calls that boxes have no use for, foreign call tables."""

import ctypes
import errno
import fcntl
import mmap
import os
import pty
import signal
import termios

from attempt import KNOWN, X86_64, attack, call, libc, raw, reachable, refused

NAMESPACES = {
    "time": 0x80, "mnt": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000,
    "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip


def in_a_child(function):
    """What a function returns (0 to 250), 254 when it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function())
        except BaseException:
            os._exit(253)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 254


@attack
def unshare_into_a_new_namespace():
    made = [
        name for name, flag in NAMESPACES.items() if in_a_child(lambda f=flag: 1 if call("unshare", f)[0] == 0 else 0)
    ]
    both = NAMESPACES["user"] | NAMESPACES["mnt"]
    if in_a_child(lambda: 1 if call("unshare", both)[0] == 0 else 0):
        made.append("user and mnt together")
    # The kernel reads all 64 bits, a filter only sees halves.
    if in_a_child(lambda: 1 if call("unshare", NAMESPACES["user"] | 1 << 40)[0] == 0 else 0):
        made.append("user with a high bit")
    return ", ".join(made) or None


@attack
def clone_into_a_new_namespace():
    made = []
    for name, flag in NAMESPACES.items():
        if name == "time":
            continue
        for extra in (0, 1 << 40):
            result, _ = call("clone", flag | extra | int(signal.SIGCHLD), 0, 0, 0, 0)
            if result == 0:
                os._exit(0)
            if result > 0:
                os.waitpid(result, 0)
                made.append(name)
    return ", ".join(made) or None


@attack
def clone3_into_a_new_namespace():
    arguments = (ctypes.c_uint64 * 11)()
    arguments[0], arguments[4] = NAMESPACES["user"], int(signal.SIGCHLD)
    result, code = call("clone3", arguments, 88)
    if result == 0:
        os._exit(0)
    return None if result < 0 and code == errno.ENOSYS else "clone3 answers %d/%d" % (result, code)


@attack
def mount_remount_or_unmount():
    os.makedirs("mnt", exist_ok=True)
    tries = {
        "tmpfs": (b"tmpfs", b"mnt", b"tmpfs", 0, b"size=64k"),
        "proc": (b"proc", b"mnt", b"proc", 0, None),
        "sysfs": (b"sysfs", b"mnt", b"sysfs", 0, None),
        "cgroup": (b"cgroup", b"mnt", b"cgroup2", 0, None),
        "bind": (b"/", b"mnt", None, 4096 | 16384, None),
        "remount read-write": (None, b"/usr", None, 32 | 4096, None),
        "remount without nosuid": (None, b"/work", None, 32, None),
        "propagation": (None, b"/", None, (1 << 20) | 16384, None),
        "move": (b"/work", b"mnt", None, 8192, None),
    }
    done = [
        name
        for name, arguments in tries.items()
        if libc.mount(*arguments[:3], ctypes.c_ulong(arguments[3]), arguments[4]) == 0
    ]
    for path in (b"/proc", b"/usr", b"/work", b"/proc/kcore", b"/proc/sys", b"/dev/pts", b"/"):
        if libc.umount2(path, 2) == 0:
            done.append("umount " + path.decode())
    return ", ".join(done) or None


@attack
def use_the_new_mount_calls():
    return reachable(
        fsopen=(b"tmpfs", 0), fsmount=(0, 0, 0), fsconfig=(0, 0, 0, 0, 0), fspick=(-100, b"/", 0),
        open_tree=(-100, b"/", 1), move_mount=(-100, b"/usr", -100, b"/work", 0), mount_setattr=(-100, b"/", 0, 0, 0),
        pivot_root=(b".", b"."),
    )  # fmt: skip


@attack
def find_a_mount_that_propagates_to_or_from_the_host():
    with open("/proc/self/mountinfo") as lines:
        tied = [line.split(" ")[4] for line in lines if "shared:" in line]
    return ", ".join(tied) or None


@attack
def set_up_an_io_uring():
    buffer = ctypes.create_string_buffer(120)
    return reachable(io_uring_setup=(1, buffer), io_uring_enter=(0, 0, 0, 0, 0), io_uring_register=(0, 0, 0, 0))


@attack
def use_the_kernel_keyrings():
    return reachable(
        keyctl=(0, -3, 0), add_key=(b"user", b"planted", b"x", 1, -2), request_key=(b"user", b"planted", 0, -2)
    )


@attack
def use_calls_of_administrators():
    nonsense = (0, 0, 0, 0, 0, 0)
    names = ("acct", "bpf", "clock_settime", "delete_module", "fanotify_init", "finit_module", "init_module", "kcmp")
    names += ("kexec_load", "kexec_file_load", "lookup_dcookie", "open_by_handle_at", "perf_event_open", "quotactl")
    names += ("reboot", "sethostname", "setdomainname", "settimeofday", "swapon", "swapoff", "syslog", "userfaultfd")
    names += ("vhangup", "iopl", "ioperm", "process_madvise", "pidfd_getfd", "move_pages", "migrate_pages", "mbind")
    names += ("setns", "ptrace", "process_vm_readv", "process_vm_writev", "umount2", "uselib", "modify_ldt")
    names += ("memfd_secret", "openat2", "quotactl_fd", "nfsservctl", "_sysctl", "ustat", "sysfs")
    return reachable(**{name: nonsense for name in names if name in KNOWN["numbers"]})


@attack
def use_calls_newer_than_the_filter():
    known = KNOWN["numbers"].values()
    found = []
    for number in range(457, 520):
        if number in known:
            continue
        result, code = raw(number, 0, 0, 0, 0, 0, 0)
        if result >= 0 or code != errno.ENOSYS:
            found.append("%d: %d/%d" % (number, result, code))
    return ", ".join(found) or None


@attack
def call_the_kernel_by_x32_numbers():
    def tries():
        worked = raw(0x40000000 | 39)[0] > 0 or raw(0x40000000 | 41, 2, 1, 0)[0] >= 0
        return 3 if worked or raw(0x40000000 | 520, b"/bin/true", 0, 0)[1] != errno.ENOSYS else 0

    return "x32 calls answer" if X86_64 and in_a_child(tries) == 3 else None


@attack
def call_the_kernel_by_i386_numbers():
    """`int 0x80` from machine code: getpid is 20 there, mkdir is 39 (getpid of 64 bits)."""
    if not X86_64:
        return None
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, edi; mov ebx, esi; mov ecx, edx; int 0x80; ret   (rbx is kept in r8)
    code.write(b"\x49\x89\xd8\x89\xf8\x89\xf3\x89\xd1\xcd\x80\x4c\x89\xc3\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)

    def tries():
        # getpid, socket (359) and unshare (310) of i386.
        return 3 if function(20, 0, 0) == os.getpid() or function(310, 0x10000000, 0) == 0 else 0

    answer = in_a_child(tries)
    return None if answer in (0, 254) else "int 0x80 answers (%d)" % answer


@attack
def push_keys_into_a_terminal():
    found = []
    for request, name in ((termios.TIOCSTI, "TIOCSTI"), (0x541C, "TIOCLINUX")):
        for descriptor in (0, 1, 2):
            if not refused(fcntl.ioctl, descriptor, request, b"\n"):
                found.append("%s on %d" % (name, descriptor))
        pid, terminal = pty.fork()
        if pid == 0:
            # Its own controlling terminal, the most favourable case; the high half of the request is nobody's.
            worked = (
                not refused(fcntl.ioctl, 0, request, b"\n")
                or libc.ioctl(0, ctypes.c_ulong(request | 1 << 32), b"\n") == 0
            )
            os._exit(3 if worked else 0)
        status = os.waitpid(pid, 0)[1]
        os.close(terminal)
        if os.WEXITSTATUS(status) == 3:
            found.append(name + " on a terminal of its own")
    if not refused(os.open, "/dev/tty", os.O_RDWR):
        found.append("has a controlling terminal")
    return ", ".join(found) or None


@attack
def find_a_terminal_that_is_not_its_own():
    return ", ".join(name for name in os.listdir("/dev/pts") if name != "ptmx") or None


@attack
def switch_its_personality():
    found = [hex(value) for value in (0x0400000, 0x0040000, 0x8, 0x0200000) if call("personality", value)[0] >= 0]
    return ", ".join(found) or None


@attack
def write_the_kernel_log_or_an_audit_record():
    import socket

    found = []
    for family, kind, protocol in ((16, 3, 9), (16, 3, 15), (16, 3, 4), (16, 3, 12), (16, 3, 16), (16, 3, 6)):
        if not refused(lambda f=family, k=kind, p=protocol: socket.socket(f, k, p).close()):
            found.append("netlink %d" % protocol)
    return ", ".join(found) or None


@attack
def run_a_program_from_memory_with_more_rights():
    """Running from a memfd is allowed; it must stay inside the very same walls."""
    descriptor, _ = call("memfd_create", b"program", 0)
    if descriptor < 0:
        return None
    with open(os.path.realpath("/bin/cat"), "rb") as file:
        os.write(descriptor, file.read())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        arguments = (ctypes.c_char_p * 4)(b"cat", b"/proc/self/status", KNOWN["canary"].encode(), None)
        call("execveat", descriptor, b"", arguments, (ctypes.c_char_p * 1)(None), 0x1000)
        os._exit(9)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    if KNOWN["secret"] in text:
        return "read the canary"
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    held = fields.get("CapEff", "?"), fields.get("NoNewPrivs", "?"), fields.get("Seccomp", "?")
    return None if not int(held[0], 16) and held[1:] == ("1", "2") else "posture %s" % (held,)


@attack
def replace_or_lift_its_system_call_filter():
    allow_all = (ctypes.c_uint64 * 1)(0x7FFF000000000006)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    call("seccomp", 1, 0, ctypes.byref(Program(1, ctypes.addressof(allow_all))))
    return reachable(keyctl=(0, -3, 0), mount=(0, 0, 0, 0, 0), setns=(0, 0))


@attack
def see_or_use_ipc_of_the_host():
    found = []
    if os.path.exists(KNOWN["shm_file"]):
        found.append(KNOWN["shm_file"])
    identifier, _ = call("shmget", KNOWN["shm_key"], 4096, 0)
    if identifier >= 0:
        found.append("SysV segment")
    for kind in ("shm", "msg", "sem"):
        with open("/proc/sysvipc/" + kind) as lines:
            if len(lines.readlines()) > 1:
                found.append("/proc/sysvipc/" + kind)
    return ", ".join(found) or None


@attack
def change_the_name_or_the_clock_of_the_host():
    import socket
    import time

    found = []
    if not refused(socket.sethostname, "owned"):
        found.append("host name")
    if not refused(time.clock_settime, time.CLOCK_REALTIME, time.time() + 1):
        found.append("clock")
    return ", ".join(found) or None
