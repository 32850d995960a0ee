# SPDX-License-Identifier: MIT
"""Runs inside a box, beside the attacks: each attack in a process of its own, its answer on one line of JSON.

An attack returns None when everything it tried was refused, else a text that says what was possible. One that breaks,
dies or hangs proves nothing and says so; it cannot take the others with it.
"""

import ctypes
import errno
import json
import os
import select
import signal
import sys

KNOWN = json.load(open("known.json"))
NUMBERS = KNOWN["numbers"]
X86_64 = os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

_attacks = []
_SECONDS = 15


def attack(function):
    _attacks.append(function)
    return function


def call(name, *arguments):
    """(result, errno) of a raw system call; (-1, ENOSYS) where this machine has no such call."""
    if name not in NUMBERS:
        return -1, errno.ENOSYS
    return raw(NUMBERS[name], *arguments)


def raw(number, *arguments):
    ctypes.set_errno(0)
    converted = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(ctypes.c_long(number), *converted)
    return result, ctypes.get_errno()


def reachable(**calls):
    """Names of the calls that got past the filter: any answer but EPERM and ENOSYS, given nonsense arguments."""
    open_doors = []
    for name, arguments in calls.items():
        result, code = call(name, *arguments)
        if result >= 0 or code not in (errno.EPERM, errno.ENOSYS):
            open_doors.append("%s=%d/%s" % (name, result, errno.errorcode.get(code, code)))
    return ", ".join(open_doors) or None


def content(path, size=1 << 16):
    """Bytes of a file, None when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, size)
    except OSError:
        return None
    finally:
        os.close(fd)


def opens(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK))
    except (OSError, ValueError):
        return False
    return True


def refused(action, *arguments, **options):
    """Whether an action raises OSError; the words of what it returned otherwise."""
    try:
        action(*arguments, **options)
    except (OSError, ValueError):
        return True
    return False


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def others():
    """Every process that is visible and is not one of ours: the box's init."""
    return [1] + [pid for pid in pids() if pid not in (1, os.getpid(), os.getppid())]


def _perform(function):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.setpgid(0, 0)
        try:
            answer = function()
        except Exception as error:
            answer = "the attack itself is broken: %s: %s" % (type(error).__name__, error)
        os.write(write, json.dumps(answer).encode()[:4000])
        os._exit(0)
    os.close(write)
    text = b""
    while select.select([read], [], [], _SECONDS)[0]:
        chunk = os.read(read, 4096)
        if not chunk:
            break
        text += chunk
    os.close(read)
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(pid, 0)
    return json.loads(text) if text else "the attack gave no answer"


def main():
    answers = {}
    for function in _attacks:
        answers[function.__name__] = _perform(function)
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
