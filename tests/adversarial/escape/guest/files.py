# SPDX-License-Identifier: MIT
"""Attacks on files: the host's, the kernel's, other boxes', and the ones this box may only read."""

import contextlib
import os
import stat
import subprocess
import sys
import sysconfig
import tempfile

from attempt import KNOWN, attack, call, content, opens, others, refused

CANARY = KNOWN["canary"]
SECRET = KNOWN["secret"].encode()


def leaks(paths):
    return [path for path in paths if SECRET in (content(path) or b"")]


@attack
def read_a_file_of_the_host():
    return ", ".join(leaks([CANARY])) or None


@attack
def write_a_file_of_the_host():
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC):
        if opens(CANARY, flags):
            return "opened with flags %o" % flags
    return None


@attack
def put_a_file_beside_one_of_the_host():
    return None if refused(open, CANARY + ".new", "w") else "made " + CANARY + ".new"


@attack
def read_a_file_of_the_host_through_a_link_of_its_own():
    os.symlink(CANARY, "link-to-canary")
    os.symlink(os.path.dirname(CANARY), "link-to-directory")
    if refused(os.link, CANARY, "hard-link"):
        return ", ".join(leaks(["link-to-canary", "link-to-directory/secret.txt"])) or None
    return "hard link made"


@attack
def read_a_file_of_the_host_by_another_spelling():
    roots = ["/proc/self/root", "/proc/thread-self/root", "/proc/1/root", "/proc/%d/root" % os.getppid()]
    roots += ["/proc/self/cwd/" + "../" * 20, "/proc/self/task/%d/root" % os.getpid(), "/", "//", "/./", "/tmp/.."]
    roots += ["/proc/self/fd/%d/%s" % (fd, "../" * 20) for fd in range(10)] + ["/dev/fd/1/" + "../" * 20]
    roots += ["/usr/" + "../" * 20, "/work/" + "../" * 20]
    return ", ".join(leaks(root + CANARY for root in roots)) or None


@attack
def reach_the_host_through_its_init():
    found = []
    for pid in others():
        for leaf in ("root", "cwd", "exe"):
            try:
                found.append("%d/%s -> %s" % (pid, leaf, os.readlink("/proc/%d/%s" % (pid, leaf))))
            except OSError:
                pass
            with contextlib.suppress(OSError):
                found.append("%d/%s: %s" % (pid, leaf, os.listdir("/proc/%d/%s" % (pid, leaf))[:3]))
    return ", ".join(found) or None


@attack
def leave_its_root_by_chroot_and_dotdot():
    os.mkdir("jail")
    if not refused(os.chroot, "jail"):
        return "chroot was possible"
    for _ in range(64):
        os.chdir("..")
    return ", ".join(leaks([CANARY.lstrip("/")])) or None


@attack
def read_what_belongs_to_the_host_alone():
    paths = ["/etc/shadow", "/etc/gshadow", "/etc/machine-id", "/etc/sudoers", "/etc/ssh", "/etc/crontab", "/boot"]
    paths += ["/root", "/home", "/var", "/run", "/sys", "/srv", "/mnt", "/media", "/opt", "/snap"]
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix)
    return (
        ", ".join(p for p in paths if os.path.lexists(p) and not any(q.startswith(p + "/") for q in prefixes)) or None
    )


@attack
def see_more_than_its_interpreter_in_a_private_directory():
    """Where the interpreter lies below /root or /tmp, the directories above it are there, and nothing beside it."""
    prefixes = {sys.prefix, sys.base_prefix}
    prefixes |= {os.path.realpath(one) for one in prefixes}
    for prefix in prefixes:
        inner = prefix
        while (parent := os.path.dirname(inner)) not in ("/", "/usr", "/tmp", "/dev"):
            shown = {os.path.join(parent, name) for name in os.listdir(parent)}
            beside = [path for path in shown if not any(p == path or p.startswith(path + "/") for p in prefixes)]
            if beside:
                return "sees " + ", ".join(sorted(beside)[:5])
            inner = parent
    return None


@attack
def learn_names_of_the_host_from_its_mounts():
    text = (content("/proc/self/mountinfo", 1 << 20) or b"").decode()
    text += (content("/proc/self/mounts", 1 << 20) or b"").decode()
    words = ("/var/lib", "agentbox", "overlay", "/docker", "/containerd", KNOWN["canary_directory"])
    return ", ".join(word for word in words if word in text) or None


@attack
def list_what_other_runs_keep_on_the_host():
    patterns = ("/var/lib/agentbox", "/tmp/agentbox", "/work/../boxes", "/data", "/state")
    found = [path for path in patterns if os.path.exists(path)]
    found += [name for name in os.listdir("/tmp") if "agentbox" in name or "snap" in name]
    return ", ".join(found) or None


@attack
def read_kernel_memory_or_host_wide_tables():
    paths = ["/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/modules"]
    paths += ["/proc/kmsg", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/iomem", "/proc/interrupts", "/proc/config.gz"]
    paths += ["/sys/firmware/acpi/tables/DSDT", "/sys/kernel/debug/sleep_time", "/sys/class/dmi/id/product_uuid"]
    paths += ["/dev/mem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/fuse", "/dev/net/tun"]
    found = [path for path in paths if content(path)]
    symbols = content("/proc/kallsyms", 200)
    if symbols and not symbols.startswith(b"0000000000000000"):
        found.append("/proc/kallsyms")
    return ", ".join(found) or None


@attack
def open_a_kernel_setting_for_writing():
    found = []
    for top in ("/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs"):
        for directory, _, names in os.walk(top):
            # A process may rename itself and answer for its own user namespace's quotas: those hold nothing.
            found += [path for path in (os.path.join(directory, n) for n in names) if opens(path, os.O_WRONLY)]
    paths = [
        "/proc/sysrq-trigger",
        "/proc/mtrr",
        "/proc/self/loginuid",
        "/sys/kernel/uevent_helper",
        "/sys/power/state",
    ]
    found += [path for path in paths if opens(path, os.O_WRONLY)]
    return ", ".join(found[:8]) or None


@attack
def write_to_or_unmask_a_hidden_file_of_the_kernel():
    paths = ["/proc/kcore", "/proc/kallsyms", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sysrq-trigger"]
    paths += ["/proc/config.gz", "/proc/modules", "/proc/interrupts", "/proc/vmallocinfo"]
    found = []
    for path in paths:
        if os.path.exists(path):
            found += [path for flags in (os.O_WRONLY, os.O_RDWR) if opens(path, flags)]
            if not refused(os.chmod, path, 0o666) or not refused(os.truncate, path, 1) or not refused(os.unlink, path):
                found.append(path + " changed")
    for path in ("/proc/acpi", "/proc/scsi", "/proc/driver", "/proc/asound"):
        if os.path.isdir(path) and (os.listdir(path) or not refused(open, path + "/planted", "w")):
            found.append(path)
    return ", ".join(found) or None


@attack
def write_to_a_control_group():
    found = []
    for directory, _, names in os.walk("/sys/fs/cgroup"):
        found += [directory + "/" + name for name in names if os.access(directory + "/" + name, os.W_OK)]
    return ", ".join(found[:5]) or ("sees /sys/fs/cgroup" if os.path.exists("/sys/fs/cgroup") else None)


@attack
def change_the_interpreter_or_its_libraries():
    spots = {sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.base_prefix}
    spots |= {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib", "scripts")}
    spots |= {path for path in sys.path if os.path.isabs(path) and path not in ("/work", os.getcwd())}
    found = []
    for spot in spots:
        if not os.path.exists(spot):
            continue
        if os.access(spot, os.W_OK):
            found.append("access says that %s can be written" % spot)
        if os.path.isdir(spot):
            if not refused(open, os.path.join(spot, "planted.pth"), "w"):
                found.append("wrote into " + spot)
        elif opens(spot, os.O_RDWR):
            found.append("opened " + spot)
        if not refused(os.chmod, spot, 0o777) or not refused(os.utime, spot):
            found.append("changed metadata of " + spot)
    return ", ".join(found) or None


@attack
def write_outside_of_its_own_directories():
    tops = ["/" + name for name in os.listdir("/") if name not in ("work", "tmp", "proc")]
    found = []
    for top in ["/", *tops, "/dev", "/dev/pts", "/etc/ssl", "/usr/bin", "/usr/lib", "/proc", "/proc/self"]:
        if os.path.isdir(top) and not refused(open, os.path.join(top, "planted"), "w"):
            found.append(top)
        if not refused(os.mkdir, os.path.join(top, "planted-directory")):
            found.append(top + " (directory)")
    for path in ("/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/ld.so.cache", "/etc/nsswitch.conf"):
        if opens(path, os.O_WRONLY) or not refused(os.rename, path, path + ".old") or not refused(os.unlink, path):
            found.append(path)
    return ", ".join(found) or None


@attack
def make_a_device_file():
    made = []
    for kind, major, minor in (
        (stat.S_IFCHR, 1, 5),
        (stat.S_IFCHR, 1, 1),
        (stat.S_IFBLK, 254, 0),
        (stat.S_IFCHR, 0, 0),
    ):
        for directory in ("/work", "/tmp", "/dev/shm", "/dev"):
            if not refused(os.mknod, "%s/device" % directory, kind | 0o666, os.makedev(major, minor)):
                made.append("%s %d:%d" % (directory, major, minor))
                os.unlink("%s/device" % directory)
    return ", ".join(made) or None


@attack
def use_a_device_beyond_the_harmless_five():
    harmless = {"null", "zero", "full", "random", "urandom", "shm", "pts", "ptmx", "fd", "stdin", "stdout", "stderr"}
    return ", ".join(set(os.listdir("/dev")) - harmless) or None


@attack
def open_a_file_by_handle():
    if call("open_by_handle_at", -100, 0, 0)[1] != 1:
        return "open_by_handle_at answers %s" % (call("open_by_handle_at", -100, 0, 0),)
    return None


@attack
def talk_to_a_service_through_a_socket_file():
    import socket

    paths = ["/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"]
    paths += ["/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", KNOWN["unix_path"]]
    paths += ["/run/systemd/notify", "/dev/log", "/tmp/.X11-unix/X0", "/tmp/ssh-agent"]
    found = []
    for path in paths:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(2)
            if not refused(sock.connect, path):
                found.append(path)
    for top in ("/run", "/var", "/tmp", "/work", "/dev"):
        for directory, _, names in os.walk(top):
            for name in names:
                with contextlib.suppress(OSError):
                    if stat.S_ISSOCK(os.stat(os.path.join(directory, name)).st_mode):
                        found.append(os.path.join(directory, name))
    return ", ".join(found) or None


@attack
def find_open_descriptors_that_lead_out():
    """Also in programs that it starts."""
    shown = "for n in range(3, 4096):\n try: print(n, os.readlink('/proc/self/fd/%d' % n))\n except OSError: pass"
    listed = subprocess.run(
        [sys.executable, "-c", "import os\n" + shown], capture_output=True, text=True, close_fds=False
    )
    found = listed.stdout.splitlines() + [listed.stderr] * bool(listed.stderr)
    for descriptor in range(3, 4096):
        with contextlib.suppress(OSError):
            target = os.readlink("/proc/self/fd/%d" % descriptor)
            # On a pipe this very attack answers.
            if not target.startswith("pipe:"):
                found.append("%d %s" % (descriptor, target))
            if not refused(os.open, "../" * 20 + CANARY, os.O_RDONLY, dir_fd=descriptor):
                found.append("the canary through %d" % descriptor)
    return ", ".join(found) or None


@attack
def mark_a_file_set_user_id():
    path = tempfile.mkstemp(dir="/work")[1]
    descriptor = os.open(path, os.O_RDWR)
    done = []
    for mode in (0o4755, 0o2755, 0o6777):
        if not refused(os.chmod, path, mode):
            done.append("chmod %o" % mode)
        if not refused(os.fchmod, descriptor, mode):
            done.append("fchmod %o" % mode)
        if not refused(os.open, "/work/new", os.O_CREAT | os.O_WRONLY, mode):
            done.append("open %o" % mode)
        if not refused(os.open, "/work", os.O_TMPFILE | os.O_WRONLY, mode):
            done.append("open with O_TMPFILE %o" % mode)
        if not refused(os.mknod, "/work/node", stat.S_IFREG | mode):
            done.append("mknod %o" % mode)
        if not refused(os.mkfifo, "/work/fifo", mode):
            done.append("mkfifo %o" % mode)
        for name, arguments in (
            ("fchmodat2", (-100, path.encode(), mode, 0)), ("creat", (b"/work/created", mode)),
            ("chmod", (path.encode(), mode)), ("fchmod", (descriptor, mode)), ("fchmodat", (-100, path.encode(), mode)),
        ):  # fmt: skip
            if call(name, *arguments)[0] >= 0:
                done.append("%s %o" % (name, mode))
    modes = [os.lstat("/work/" + name).st_mode for name in os.listdir("/work")]
    if any(mode & 0o6000 and not stat.S_ISDIR(mode) for mode in modes):
        done.append("a file is set-id now")
    return ", ".join(done) or None


@attack
def gain_from_a_set_user_id_program():
    ids = os.getresuid() + os.getresgid()
    if 0 in ids or not refused(os.setuid, 0) or not refused(os.setgid, 0) or not refused(os.setgroups, [0]):
        return "ids %s" % (ids,)
    found = []
    with open("/proc/self/mountinfo") as lines:
        for line in lines:
            point, options = line.split(" ")[4:6]
            if "nosuid" not in options.split(",") and os.path.isdir(point):
                found.append(point)
    return "set-id bits are in force below " + ", ".join(found) if found else None
