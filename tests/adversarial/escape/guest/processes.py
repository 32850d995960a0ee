# SPDX-License-Identifier: MIT
"""Attacks on processes: the host's, the server's, and the box's own init."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess

from attempt import KNOWN, attack, call, content, libc, opens, others, pids, raw, refused

SECRET = KNOWN["secret"].encode()
OWN = b"/work" + b"/main.py"
PTRACE_ATTACH, PTRACE_SEIZE, PTRACE_TRACEME = 16, 0x4206, 0


@attack
def see_a_process_of_the_host():
    marks = [pid for pid in pids() if KNOWN["victim_mark"].encode() in (content("/proc/%d/cmdline" % pid) or b"")]
    listed = subprocess.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"], capture_output=True).stdout
    # Where the server is installed is nobody's business either.
    words = [word for word in (b"/agentbox", b"uvicorn", b"serve", b"main.py") if word in listed.replace(OWN, b"")]
    return "sees %s %s" % (marks, words) if marks or words else None


@attack
def see_more_than_its_own_processes():
    strangers = [pid for pid in others() if pid != 1]
    return "sees %s" % strangers if strangers else None


@attack
def read_a_secret_in_an_environment_or_command_line():
    found = []
    for name in [str(pid) for pid in pids()] + ["self", "thread-self"]:
        for leaf in ("environ", "cmdline", "maps", "auxv"):
            text = content("/proc/%s/%s" % (name, leaf), 1 << 20) or b""
            if SECRET in text or b"CANARY" in text:
                found.append(name + "/" + leaf)
    return ", ".join(found) or None


@attack
def find_credentials_in_its_own_environment():
    expected = {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PWD", "LC_CTYPE"}
    extra = set(os.environ) - expected
    valued = [name for name, value in os.environ.items() if "CANARY" in value]
    return "has %s %s" % (sorted(extra), valued) if extra or valued else None


@attack
def look_into_its_init():
    leaves = (
        "environ",
        "mem",
        "maps",
        "auxv",
        "stack",
        "syscall",
        "pagemap",
        "io",
        "personality",
        "smaps",
        "map_files",
    )
    found = ["/proc/1/" + leaf for leaf in leaves if content("/proc/1/" + leaf)]
    # An ordinary user's own init may be asked which numbers its descriptors have, which says nothing.
    found += ["/proc/1/fdinfo/%d" % number for number in range(64) if content("/proc/1/fdinfo/%d" % number)]
    for leaf in ("map_files", "root", "cwd"):
        with contextlib.suppress(OSError):
            found.append("/proc/1/%s: %s" % (leaf, os.listdir("/proc/1/" + leaf)[:4]))
    links = ["fd/%d" % number for number in range(64)]
    for leaf in (*links, "exe", "root", "cwd", "ns/pid", "ns/mnt", "ns/net", "ns/user"):
        with contextlib.suppress(OSError):
            found.append("/proc/1/%s -> %s" % (leaf, os.readlink("/proc/1/" + leaf)))
    return ", ".join(found) or None


@attack
def change_its_init():
    leaves = ("mem", "oom_score_adj", "oom_adj", "comm", "clear_refs", "coredump_filter", "timerslack_ns", "uid_map")
    leaves += ("gid_map", "setgroups", "sched", "autogroup", "attr/current", "projid_map", "loginuid")
    return ", ".join(leaf for leaf in leaves if opens("/proc/1/" + leaf, os.O_WRONLY)) or None


@attack
def take_a_descriptor_of_its_init():
    found = []
    descriptor, _ = call("pidfd_open", 1, 0)
    for number in range(64):
        if opens("/proc/1/fd/%d" % number, os.O_RDWR) or opens("/proc/1/fd/%d" % number, os.O_RDONLY):
            found.append("/proc/1/fd/%d" % number)
        if descriptor >= 0 and call("pidfd_getfd", descriptor, number, 0)[0] >= 0:
            found.append("pidfd_getfd %d" % number)
    return ", ".join(found) or None


@attack
def speak_on_the_control_socket_of_its_init():
    """No socket is among its descriptors, and the init's own have no name to connect to."""
    sockets = [to for to in map(_target, os.listdir("/proc/self/fd")) if to.startswith("socket:")]
    names = [line.split()[7:] for line in (content("/proc/net/unix") or b"").decode().splitlines()[1:]]
    return "sockets %s, names %s" % (sockets, names) if sockets or any(names) else None


def _target(number):
    try:
        return os.readlink("/proc/self/fd/" + number)
    except OSError:
        return ""


@attack
def end_or_stop_its_init_by_a_signal():
    names = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGSTOP", "SIGTSTP", "SIGUSR1", "SIGPIPE", "SIGCHLD")
    descriptor, _ = call("pidfd_open", 1, 0)
    for name in names:
        number = getattr(signal, name)
        with contextlib.suppress(OSError):
            os.kill(1, number)
        call("tgkill", 1, 1, int(number))
        if descriptor >= 0:
            call("pidfd_send_signal", descriptor, int(number), 0, 0)
    for number in (32, 33, 34, 64):
        libc.kill(1, number)
    os.kill(1, 0) if not refused(os.kill, 1, 0) else None
    state = (content("/proc/1/stat") or b"?) ?").rpartition(b")")[2].split()[0]
    # An init that is stopped or gone would not reap this orphan.
    orphan = subprocess.run(["sh", "-c", "sh -c 'exit 0' & echo $!"], capture_output=True, text=True).stdout.strip()
    for _ in range(500):
        if not os.path.exists("/proc/" + orphan):
            break
        os.sched_yield()
        call("getpid")
        signal.sigtimedwait([], 0.01)
    else:
        return "the init reaps no more, its state is %s" % state
    return None if state in (b"S", b"R", b"D") else "the init is in state %s" % state


@attack
def signal_a_process_outside():
    found = []
    for pid in (KNOWN["victim"], os.getppid() + 100000, 2, 3):
        if pid not in pids() and not refused(os.kill, pid, 0):
            found.append(str(pid))
    return ", ".join(found) or None


@attack
def trace_its_init_or_a_stranger():
    found = []
    for pid in (1, KNOWN["victim"]):
        for request in (PTRACE_ATTACH, PTRACE_SEIZE):
            result, code = call("ptrace", request, pid, 0, 0)
            if result == 0 or code != 1:
                found.append("ptrace %#x of %d: %d/%d" % (request, pid, result, code))
    return ", ".join(found) or None


@attack
def read_the_memory_of_its_init_or_a_stranger():
    class Vector(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

    buffer = ctypes.create_string_buffer(8)
    own = Vector(ctypes.addressof(buffer), 8)
    found = []
    for pid in (1, KNOWN["victim"], os.getppid()):
        for name in ("process_vm_readv", "process_vm_writev"):
            result, code = call(name, pid, ctypes.byref(own), 1, ctypes.byref(own), 1, 0)
            if result >= 0 or code not in (1, 38):
                found.append("%s %d: %d/%d" % (name, pid, result, code))
    if opens("/proc/1/mem", os.O_RDONLY):
        found.append("/proc/1/mem")
    return ", ".join(found) or None


@attack
def enter_a_namespace_of_another_process():
    found = []
    for pid in ("1", "self", str(os.getppid())):
        for name in ("net", "mnt", "pid", "user", "ipc", "uts", "cgroup", "time"):
            try:
                descriptor = os.open("/proc/%s/ns/%s" % (pid, name), os.O_RDONLY)
            except OSError:
                continue
            if call("setns", descriptor, 0)[0] == 0:
                found.append("%s of %s" % (name, pid))
            os.close(descriptor)
    return ", ".join(found) or None


@attack
def rewrite_its_own_identity_files():
    found = []
    for leaf in ("uid_map", "gid_map", "projid_map", "setgroups"):
        try:
            with open("/proc/self/" + leaf, "w") as file:
                file.write("allow" if leaf == "setgroups" else "0 0 1\n")
            found.append(leaf)
        except OSError:
            pass
    # Lowering the score (being spared by the kernel's memory killer) is what would hurt others.
    before = int(content("/proc/self/oom_score_adj"))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("-1000")
        found.append("oom_score_adj -1000")
    except OSError:
        pass
    if int(content("/proc/self/oom_score_adj")) < before:
        found.append("oom_score_adj is lower")
    return ", ".join(found) or None


@attack
def raise_its_limits_or_its_priority():
    import resource

    found = []
    for name in ("NPROC", "NOFILE", "CORE", "MEMLOCK", "MSGQUEUE"):
        which = getattr(resource, "RLIMIT_" + name, 12 if name == "MSGQUEUE" else None)
        soft, hard = resource.getrlimit(which)
        if hard == resource.RLIM_INFINITY or not refused(resource.setrlimit, which, (soft, hard + 1)):
            found.append("%s %s" % (name, hard))
    if not refused(os.nice, -1):
        found.append("nice")
    if not refused(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)):
        found.append("SCHED_FIFO")
    return ", ".join(found) or None


@attack
def keep_or_regain_a_privilege():
    fields = dict(line.split(":\t", 1) for line in (content("/proc/self/status") or b"").decode().splitlines())
    found = [n for n in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(fields[n], 16)]
    if fields["NoNewPrivs"] != "1" or fields["Seccomp"] != "2":
        found.append("no_new_privs %s, seccomp %s" % (fields["NoNewPrivs"], fields["Seccomp"]))
    if libc.prctl(38, 0, 0, 0, 0) == 0:
        found.append("no_new_privs can be cleared")
    if libc.prctl(47, 2, 21, 0, 0) == 0:
        found.append("an ambient capability can be raised")
    if libc.prctl(28, 0, 0, 0, 0) == 0:
        found.append("securebits can be changed")
    return ", ".join(found) or None


@attack
def send_forged_credentials():
    import struct

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for identity in ((1, 0, 0), (1, os.getuid(), os.getgid())):
        ancillary = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", *identity))]
        if not refused(ours.sendmsg, [b"x"], ancillary):
            return "sent as %s" % (identity,)
    del theirs
    return None


@attack
def queue_a_signal_with_forged_sender():
    information = ctypes.create_string_buffer(128)
    ctypes.cast(information, ctypes.POINTER(ctypes.c_int))[2] = 0  # SI_USER: "the kernel says who"
    result, _ = raw(KNOWN["numbers"]["rt_sigqueueinfo"], 1, int(signal.SIGUSR1), information)
    return "queued" if result == 0 else None
