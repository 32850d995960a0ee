# SPDX-License-Identifier: MIT
"""PID 1 of the virtual machine: shows the host's files read-only, runs programs in turn, reports, powers off.

Runs from the initial RAM disk with a handful of standard modules; knows nothing of the project.
"""

import ctypes
import json
import os

MS_RDONLY, MS_NOSUID, MS_BIND, MS_MOVE = 1, 2, 4096, 8192
FINIT_MODULE = {"x86_64": 313, "aarch64": 273}
LINUX_REBOOT_CMD_POWER_OFF = 0x4321FEDC
SIGKILL = 9
NINE_P = "trans=virtio,version=9p2000.L,msize=512000"

libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind, flags=0, options=""):
    os.makedirs(target, exist_ok=True)
    arguments = [value.encode() for value in (source, target, kind)]
    if libc.mount(*arguments, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def load_modules():
    for name in sorted(os.listdir("/modules")):
        fd = os.open(f"/modules/{name}", os.O_RDONLY)
        if libc.syscall(FINIT_MODULE[os.uname().machine], fd, b"", 0) != 0:
            print(f"vm: module {name}: {os.strerror(ctypes.get_errno())}", flush=True)
        os.close(fd)


def show_host(repository):
    """Make the host's tree the root: read-only, with a fresh /proc, /sys, /dev, /tmp, /run and cgroup v2."""
    mount("host", "/host", "9p", MS_RDONLY, NINE_P + ",cache=loose")
    mount("/host" + repository, "/repository", "", MS_BIND)
    for directory in ("/tmp", "/run", "/var/tmp"):
        mount("tmpfs", "/host" + directory, "tmpfs", MS_NOSUID, "mode=1777")
    mount("devtmpfs", "/host/dev", "devtmpfs", MS_NOSUID, "mode=755")
    mount("tmpfs", "/host/dev/shm", "tmpfs", MS_NOSUID, "mode=1777")
    mount("devpts", "/host/dev/pts", "devpts", MS_NOSUID, "ptmxmode=666")
    for name, target in (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        if not os.path.lexists(f"/host/dev/{target}"):
            os.symlink(f"/proc/self/{name}", f"/host/dev/{target}")
    mount("proc", "/host/proc", "proc")
    mount("sysfs", "/host/sys", "sysfs")
    mount("securityfs", "/host/sys/kernel/security", "securityfs")
    mount("cgroup2", "/host/sys/fs/cgroup", "cgroup2", 0, "nsdelegate")
    if not os.path.isdir("/host" + repository):
        # It lies below /tmp, which is a fresh one now.
        mount("/repository", "/host" + repository, "", MS_BIND)
    mount("/exchange", "/host/run/exchange", "", MS_BIND)
    os.chdir("/host")
    mount("/host", "/", "", MS_MOVE)
    os.chroot(".")
    os.chdir("/")


def raise_loopback():
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def run(program):
    """Run a program with its output in the exchange directory; returns its exit code as a shell would."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            path = f"/run/exchange/{program['name']}.{name}"
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.chdir(program["cwd"])
        os.execve(program["argv"][0], program["argv"], program["env"])
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_what_is_left():
    """The next program begins with no process but this one."""
    try:
        os.kill(-1, SIGKILL)
        while True:
            os.wait()
    except (ProcessLookupError, ChildProcessError):
        pass


def main():
    mount("proc", "/proc", "proc")
    mount("devtmpfs", "/dev", "devtmpfs")
    load_modules()
    mount("exchange", "/exchange", "9p", 0, NINE_P)
    with open("/exchange/request.json") as file:
        request = json.load(file)
    with open("/exchange/booted", "w") as file:
        file.write(os.uname().release)
    show_host(request["repository"])
    raise_loopback()
    for program in request["programs"]:
        code = run(program)
        with open(f"/run/exchange/{program['name']}.exit_code", "w") as file:
            file.write(str(code))
        end_what_is_left()


try:
    main()
except BaseException as problem:  # PID 1 must never end by itself: the kernel would panic instead of reporting.
    print(f"vm: init failed: {problem!r}", flush=True)
finally:
    os.sync()
    libc.reboot(ctypes.c_int(LINUX_REBOOT_CMD_POWER_OFF))
