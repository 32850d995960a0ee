# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""The walls around a program in a pooled box are those of a box that the launcher built: each is asked from inside."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable

import pytest

from tests.adversarial.escape.posture import NAMESPACES, Posture
from tests.adversarial.guests import running
from tests.adversarial.pool.conftest import FIELDS, WAYS, said, until_warm, warm_server
from tests.running_server import RunningServer

pytestmark = [pytest.mark.linux, pytest.mark.root]

LOOKS = {
    "identity_and_filters": """
wanted = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
          "Seccomp_filters", "Umask", "TracerPid", "Cpus_allowed", "Mems_allowed", "Speculation_Store_Bypass")
print([line for line in open("/proc/self/status") if line.split(":")[0] in wanted])
print(open("/proc/self/uid_map").read().split()[::2], open("/proc/self/setgroups").read())
""",
    "limits": """
import resource
print([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")])
""",
    "what_is_mounted": """
own = ("size=", "uid=", "gid=", "nr_inodes=")
seen = {}
for line in open("/proc/mounts"):
    place, kind, options = line.split()[1:4]
    # What lies on top counts; a cover that cannot be written anyway may say so or not.
    seen[place] = kind, sorted(o for o in options.split(",") if not o.startswith(own) and o not in ("ro", "rw"))
print(sorted(seen.items()))
""",
    "what_can_be_written": """
import os
def writable(path):
    try:
        os.open(path + "/probe", os.O_CREAT | os.O_WRONLY)
        return True
    except OSError:
        return False
places = sorted({line.split()[1] for line in open("/proc/mounts")})
print([(place, writable(place)) for place in places if os.path.isdir(place)])
""",
    "devices": """
import os
print([(n, oct(os.stat("/dev/" + n).st_mode), os.stat("/dev/" + n).st_rdev) for n in sorted(os.listdir("/dev"))
       if n not in ("pts", "stdin", "stdout", "stderr", "fd")], sorted(os.listdir("/dev/pts")))
""",
    "processes": "import os\nprint(sorted(n for n in os.listdir('/proc') if n.isdigit()), os.getpid())\n",
    "masks_of_proc": """
import os
for name in sorted(os.listdir("/proc")):
    path = "/proc/" + name
    if name.isdigit() or name in ("self", "thread-self"):
        continue
    try:
        there = len(os.listdir(path)) if os.path.isdir(path) else len(open(path, "rb").read(64)) > 0
    except OSError as error:
        there = error.errno
    if there in (0, False) or name in ("sys", "kcore", "keys", "acpi", "irq", "bus", "fs"):
        print(name, there, os.access(path, os.W_OK))
""",
    "settings_of_the_kernel": """
for name in ("kernel/core_pattern", "kernel/hostname", "vm/overcommit_memory", "net/ipv4/ip_forward", "kernel/ns_last_pid",
             "net/core/somaxconn", "fs/mqueue/msg_max"):
    try:
        open("/proc/sys/" + name, "w").write("1")
        print(name, "written")
    except OSError as error:
        print(name, error.errno)
""",
    "no_sys": "import os\nprint(os.path.exists('/sys'), os.path.exists('/sys/fs/cgroup'), os.path.exists('/run'), os.path.exists('/home'))\n",
    "network": """
import socket
print(socket.if_nameindex(), open("/proc/net/route").read(), open("/proc/net/tcp").read().count("\\n"),
      open("/proc/net/unix").read().count("\\n"), open("/proc/net/dev").read())
""",
    "shared_memory_and_queues": """
import os, ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(os.listdir("/dev/shm"), [open("/proc/sysvipc/" + n).read().count("\\n") for n in ("shm", "sem", "msg")])
""",
    "landlock_scope": """
import os, socket
inside = socket.socket(socket.AF_UNIX); inside.bind("\\0own"); inside.listen(1)
socket.socket(socket.AF_UNIX).connect("\\0own")
for act in ("os.link('main.py', '/tmp/linked')", "os.rename('main.py', '/tmp/moved')", "os.mknod('/work/fifo', 0o010600)",
            "os.mknod('/work/dev', 0o020600, 259)", "os.symlink('x', '/usr/x')", "os.chmod('main.py', 0o4755)",
            "os.open('/dev/null', os.O_RDWR)", "os.truncate('/etc/passwd', 0)"):
    try:
        eval(act)
        print(act, "done")
    except OSError as error:
        print(act, "refused", error.errno in (1, 13, 18, 30))
""",
    "system_calls": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(n, *a):
    ctypes.set_errno(0)
    return libc.syscall(n, *a), ctypes.get_errno()
# mount, umount2, unshare, setns, ptrace, bpf, keyctl, io_uring_setup, userfaultfd, perf_event_open, reboot, kexec_load,
# open_by_handle_at, pivot_root, chroot, clone3, init_module, process_vm_readv, personality, add_key, fsopen, move_mount
for n in (165, 166, 272, 308, 101, 321, 250, 425, 323, 298, 169, 246, 304, 155, 161, 435, 175, 310, 135, 248, 430, 429):
    print(n, call(n, 0, 0, 0, 0, 0))
""",
    "control_group": "print(open('/proc/self/cgroup').read())\n",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("look", LOOKS)
def test_pooled_box_looks_from_inside_like_one_that_the_launcher_built(
    look: str, way: str, pooled: RunningServer, unpooled: RunningServer
) -> None:
    limits = {"limits": {"disk_mb": 31 if way == "forked" else 256, "timeout_seconds": 30}}
    assert said(pooled, LOOKS[look], way, **limits) == said(unpooled, LOOKS[look], "cold", **limits)


@pytest.mark.parametrize("way", WAYS)
def test_every_run_has_namespaces_of_its_own(way: str, pooled: RunningServer) -> None:
    code = f"import os\nprint([os.readlink('/proc/self/ns/' + n) for n in {NAMESPACES}])"
    seen = [json.loads(said(pooled, code, way).replace("'", '"')) for _ in range(4)]
    host = [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]
    for column, name in enumerate(NAMESPACES):
        # A namespace that ended may give its number to a later one, but the host's never.
        assert host[column] not in {one[column] for one in seen}, name


@pytest.mark.parametrize("way", WAYS)
def test_two_runs_at_once_share_no_namespace_and_no_id(way: str, pooled: RunningServer) -> None:
    code = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
    marks = [f"pooled-{secrets.token_hex(6)}" for _ in range(2)]
    with (
        running(pooled, code, args=[marks[0]], **FIELDS[way]),
        running(pooled, code, args=[marks[1]], **FIELDS[way]),
    ):
        one, other = (Posture.of(mark) for mark in marks)
        for name in NAMESPACES:
            assert one.namespaces[name] != other.namespaces[name], name
            assert one.namespaces[name] != os.readlink(f"/proc/self/ns/{name}"), name
        assert one.status["Uid"] != other.status["Uid"]
        for posture in (one, other):
            assert set(posture.descriptors) <= {"0", "1", "2", "1000"}
            assert posture.descriptors.get("1000", "pipe:").startswith("pipe:")
            assert "canary-of-the-server" not in str(posture.environment)


def test_nothing_of_the_server_or_of_other_keys_is_in_the_memory_of_a_warm_program(
    start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The scan's patterns do not match themselves."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    words = {name: f"canary-of-{name}" for name in ("alice", "bob")}
    keys.write_text("".join(f"{name}:{word}-{'k' * 32}\n" for name, word in words.items()))
    keys.chmod(0o600)
    server = start_server(AGENTBOX_KEY_FILE=str(keys), DATABASE_URL="canary-of-server")
    look = """
import re
parts = [b"canary-of-[a-z]+", b"AGENTBOX_KEY_FIL[E]", b"AGENTBOX_STATE_DI[R]"]
found = set()
for line in open("/proc/self/maps").read().splitlines():
    span, mode = line.split()[:2]
    if "r" not in mode or "[v" in line:
        continue
    begin, end = (int(x, 16) for x in span.split("-"))
    with open("/proc/self/mem", "rb", buffering=0) as mem:
        try:
            mem.seek(begin)
            data = mem.read(end - begin)
        except (OSError, OverflowError):
            continue
    for part in parts:
        found.update(m.group() for m in re.finditer(part, data))
print(sorted(found))
"""
    for name, word in words.items():
        key = f"{word}-{'k' * 32}"
        until_warm(server, authorization=f"Bearer {key}")
        with server.client(headers={"authorization": f"Bearer {key}"}) as client:
            # What one key's run says and holds ...
            client.post("/v1/run", json={"code": f"x = 'canary-of-run{name}'"})
            # ... the next of either key does not find.
            answer = client.post("/v1/run", json={"code": look, "limits": {"memory_mb": 1024}}).json()
        assert answer["timings"]["start"] in ("warm", "forked")
        assert (answer["stdout"], answer["stderr"]) == ("[]\n", "")


def test_each_key_has_an_interpreter_of_its_own(
    start_server: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("".join(f"{name}:{name * 40}\n" for name in "abc"))
    keys.chmod(0o600)
    server = start_server(AGENTBOX_KEY_FILE=str(keys), AGENTBOX_POOL_KEYS="2")
    hashes = {}
    for name in "abca":
        until_warm(server, authorization=f"Bearer {name * 40}")
        with server.client(headers={"authorization": f"Bearer {name * 40}"}) as client:
            answers = [client.post("/v1/run", json={"code": "print(hash('a'), id(object))"}).json() for _ in range(2)]
        for answer in answers:
            assert answer["timings"]["start"] in ("warm", "forked")
        assert answers[0]["stdout"] == answers[1]["stdout"]
        # The third key took the place of the first, which gets a new interpreter when it is back.
        assert answers[0]["stdout"] not in hashes.values()
        hashes[f"{name}{len(hashes)}"] = answers[0]["stdout"]
    assert len(set(hashes.values())) == 4


def test_environment_of_the_server_is_not_in_a_run(pooled: RunningServer) -> None:
    code = "import os\nprint([n for n in os.environ if n not in ('PATH', 'HOME', 'TMPDIR', 'LANG')])"
    assert "DATABASE" not in said(pooled, code, "warm")


def test_a_server_whose_pool_is_shared_by_no_key_still_warms_its_only_caller(
    start_server: Callable[..., RunningServer],
) -> None:
    server = warm_server(start_server, AGENTBOX_POOL_SIZE="1", AGENTBOX_POOL_KEYS="1")
    assert said(server, "print(1)", "warm") == "1\n"
