# SPDX-License-Identifier: MIT
"""Raw system calls: numbers for x86_64 and aarch64, and a call that raises OSError with the call's name.

Numbers are the kernel's ABI (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h); they never
change. A test compares them with libseccomp where that library is installed.
"""

from __future__ import annotations

import os

from agentbox.linux import foreign

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

libc = foreign.CDLL(None, use_errno=True)
if hasattr(libc, "syscall"):
    libc.syscall.restype = foreign.c_long

MACHINES = ("x86_64", "aarch64")

# name: (x86_64, aarch64); None where the architecture has no such call
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "afs_syscall": (183, None),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chmod": (90, None),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "creat": (85, None),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "connect": (42, 203),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "getpmsg": (181, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "listmount": (458, 458),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mseal": (462, 462),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "putpmsg": (182, None),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "security": (185, None),
    "set_mempolicy": (238, 237),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "statmount": (457, 457),
    "statx": (332, 291),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "tuxcall": (184, None),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vserver": (236, None),
    "bind": (49, 200),
    "chown": (92, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "futimesat": (261, None),
    "lchown": (94, None),
    "link": (86, None),
    "linkat": (265, 37),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "removexattr": (197, 14),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "rmdir": (84, None),
    "setxattr": (188, 5),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "truncate": (76, 45),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}


def number(name: str, machine: str | None = None) -> int | None:
    """The call's number on `machine` (default: this one), None where that architecture does not have it.

    Raises OSError on a machine that agentbox has no table for.
    """
    machine = machine or os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no system call table for {machine}; supported: {', '.join(MACHINES)}")
    return NUMBERS[name][MACHINES.index(machine)]


def syscall(name: str, *arguments: Any) -> int:
    """Make the call; ints, bytes and ctypes objects as arguments. Raises OSError whose text begins with the name."""
    nr = number(name)
    if nr is None:
        raise OSError(38, f"{name}: not on this architecture")
    foreign.set_errno(0)
    converted = [foreign.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(libc.syscall(foreign.c_long(nr), *converted))
    if result < 0:
        code = foreign.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def check(name: str, result: int) -> int:
    """`result` of a libc call that reports through errno. Raises OSError whose text begins with the name."""
    if result < 0:
        code = foreign.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
