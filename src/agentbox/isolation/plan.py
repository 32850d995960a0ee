# SPDX-License-Identifier: MIT
"""Confinement -> LaunchPlan: everything the launcher does for a box, decided beforehand. Pure."""

from __future__ import annotations

from agentbox.models import Confinement
from agentbox.records import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentbox.models import Limits, ProgramRule

GUEST_UID = 1000
WORKSPACE = "/work"
DURABLE_PROGRAMS = "/.agentbox/bin"
_MIB = 1 << 20

# Bytes of disk that one inode stands for: 256 MB of disk come with 65,536 files.
_BYTES_PER_INODE = 4096
_MIN_INODES = 4096
# The root's own skeleton lives on the same file system.
_SKELETON_BYTES = _MIB // 2
_SKELETON_INODES = 512
_OPEN_FILES = 4096

DEVICES = ("null", "zero", "full", "random", "urandom")

# Host directories and files that ordinary software looks for below /etc; shown read-only where they exist.
ETC_VISIBLE = (
    "alternatives", "ca-certificates", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic",
    "mime.types", "pki", "protocols", "python3", "python3.11", "python3.12", "python3.13", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip

# The kernel's own lists of what a container runtime hides, and what tells one box about others or the host.
PROC_MASKED_FILES = (
    "/proc/config.gz", "/proc/interrupts", "/proc/iomem", "/proc/ioports", "/proc/kallsyms", "/proc/kcore",
    "/proc/key-users", "/proc/keys", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags",
    "/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/slabinfo", "/proc/sysrq-trigger",
    "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
)  # fmt: skip
PROC_MASKED_DIRECTORIES = ("/proc/acpi", "/proc/asound", "/proc/driver", "/proc/scsi")
PROC_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys")

_RESOLVER = "/etc/resolv.conf"
_SYNTHETIC = (
    ("/etc/passwd", f"agent:x:{GUEST_UID}:{GUEST_UID}:agent:/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"),
    ("/etc/group", f"agent:x:{GUEST_UID}:\nnogroup:x:65534:\n"),
    ("/etc/hosts", "127.0.0.1 localhost box\n::1 localhost ip6-localhost\n"),
    ("/etc/hostname", "box\n"),
    (_RESOLVER, ""),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"),
)
_DEVICE_LINKS = (
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
)


@dataclass(frozen=True, slots=True)
class HostView:
    """What of the host's layout a plan depends on; read once by host.py.

    `top` are the directories of the base view with their link target or None when they are real; `etc` the names of
    ETC_VISIBLE that exist.
    """

    top: tuple[tuple[str, str | None], ...]
    etc: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Runtime:
    """How gVisor runs in a box: the `runsc` of the host, its platform, its network ("none", or "host" for that of the
    namespace around it), host ids of the guest's root, its user and nobody (where its user is root: an ordinary user,
    root and nobody), the limits that gVisor holds, the capabilities that programs have in it, as a bit mask, and
    whether what the box shows can be changed, in its own memory."""

    program: str
    platform: str
    network: str
    host_ids: tuple[int, int, int]
    rlimits: tuple[tuple[str, int], ...]
    capabilities: int = 0
    changes: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Instructions for the launcher; plain values only, since it travels as JSON.

    `binds` are (source, target) pairs, shown read-only. `watch_memory_bytes` is the anonymous memory at which the
    init kills the box, 0 where a memory cgroup does that. Ids are the box's own as the host sees them. A `staged` box
    waits until its owner has filled the workspace and says what of it is shown. `lent` are directories of the host that
    are writable in the box: (source, target); `parts` are what lies in such a
    one: (the directory, a path in it on which no link is followed, target, writable). `joins` are the namespaces
    ("user", "network", in the order of entering) that come as descriptors with the plan; without any, the box gets a
    network of its own. `sources` are what is shown at a granted path instead of the host's own. At `unix_listeners`
    sockets are made inside for the owner to serve. With a `runtime` the box is gVisor's.
    """

    namespaces: bool
    host_uid: int
    host_gid: int
    guest_uid: int
    workspace: str
    hostname: str = "box"
    binds: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    devices: tuple[str, ...] = ()
    writable: tuple[tuple[str, int], ...] = ()
    disk_bytes: int = 0
    inodes: int = 0
    proc_masked_files: tuple[str, ...] = ()
    proc_masked_directories: tuple[str, ...] = ()
    proc_read_only: tuple[str, ...] = ()
    landlock_read: tuple[str, ...] = ()
    rlimits: tuple[tuple[str, int], ...] = ()
    watch_memory_bytes: int = 0
    grants: tuple[tuple[str, bool], ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    lent: tuple[tuple[str, str], ...] = ()
    parts: tuple[tuple[str, str, str, bool], ...] = ()
    hidden: tuple[str, ...] = ()
    channel: str = ""
    judge: bool = False
    witness_all: bool = False
    checkpoint: bool = False
    exec_rules: tuple[tuple[dict[str, object], ...], ...] | None = None
    command: dict[str, object] | None = None
    staged: bool = False
    joins: tuple[str, ...] = ()
    unix_listeners: tuple[str, ...] = ()
    runtime: Runtime | None = None


def jail_plan(
    confinement: Confinement, host: HostView, *, host_uid: int, host_gid: int, memory_held_by_cgroup: bool
) -> LaunchPlan:
    """The plan of a box with namespaces of its own."""
    limits = confinement.limits
    binds = [(path, path) for path, link in host.top if link is None]
    links = [(path, link) for path, link in host.top if link is not None]
    binds += [(f"/etc/{name}", f"/etc/{name}") for name in host.etc]
    binds += [(path, path) for path in confinement.read_only]
    rlimits = [
        ("CORE", 0),
        ("NOFILE", _OPEN_FILES),
        # Counted per user namespace (Linux 5.14), so this holds the box alone; its init counts too.
        ("NPROC", limits.pids + 1),
        ("MEMLOCK", 8 * _MIB),
        ("MSGQUEUE", 819200),
    ]
    if not memory_held_by_cgroup:
        rlimits.append(("DATA", (limits.memory_mb + 512) * _MIB))
    disk_bytes, inodes = disk_of(limits)
    return LaunchPlan(
        namespaces=True,
        host_uid=host_uid,
        host_gid=host_gid,
        guest_uid=GUEST_UID,
        workspace=WORKSPACE,
        binds=tuple(dict.fromkeys(binds)),
        files=_SYNTHETIC,
        links=(*links, *_DEVICE_LINKS),
        devices=DEVICES,
        writable=((WORKSPACE, 0o755), ("/tmp", 0o1777), ("/dev/shm", 0o1777)),  # noqa: S108
        disk_bytes=disk_bytes,
        inodes=inodes,
        proc_masked_files=PROC_MASKED_FILES,
        proc_masked_directories=PROC_MASKED_DIRECTORIES,
        proc_read_only=PROC_READ_ONLY,
        landlock_read=("/",),
        rlimits=tuple(rlimits),
        watch_memory_bytes=0 if memory_held_by_cgroup else limits.memory_mb * _MIB,
    )


def disk_of(limits: Limits) -> tuple[int, int]:
    """Bytes and inodes of the one file system that holds everything a box may write."""
    disk_bytes = limits.disk_mb * _MIB
    return disk_bytes + _SKELETON_BYTES, max(_MIN_INODES, disk_bytes // _BYTES_PER_INODE) + _SKELETON_INODES


def skeleton_of(limits: Limits, host: HostView, *, host_uid: int, host_gid: int) -> LaunchPlan:
    """What every plan of a box of that uid has in common, before it is known what it is for. `limits` are the highest
    that it may get."""
    return jail_plan(Confinement(limits), host, host_uid=host_uid, host_gid=host_gid, memory_held_by_cgroup=True)


# What a skeleton fixes; of its other parts a plan may have more.
_FIXED = (
    *("namespaces", "host_uid", "host_gid", "guest_uid", "hostname", "devices", "links"),
    *("proc_masked_files", "proc_masked_directories", "proc_read_only"),
)


def fits(plan: LaunchPlan, skeleton: LaunchPlan) -> bool:
    """Whether a box that was begun as the skeleton says can become that of the plan."""
    return (
        plan.judge
        and not plan.staged
        and not plan.joins
        and all(getattr(plan, name) == getattr(skeleton, name) for name in _FIXED)
        and plan.binds[: len(skeleton.binds)] == skeleton.binds
        and plan.files[: len(skeleton.files)] == skeleton.files
    )


def unisolated_plan(
    confinement: Confinement, *, workspace: str, host_uid: int, host_gid: int, memory_held_by_cgroup: bool
) -> LaunchPlan:
    """The plan of a box without a wall: resource limits of single processes and the memory watch only."""
    limits = confinement.limits
    return LaunchPlan(
        namespaces=False,
        host_uid=host_uid,
        host_gid=host_gid,
        guest_uid=host_uid,
        workspace=workspace,
        rlimits=(
            ("CORE", 0),
            ("NOFILE", _OPEN_FILES),
            ("FSIZE", limits.disk_mb * _MIB),
            *(() if memory_held_by_cgroup else (("DATA", (limits.memory_mb + 512) * _MIB),)),
        ),
        watch_memory_bytes=0 if memory_held_by_cgroup else limits.memory_mb * _MIB,
    )


def durable_plan(
    base: LaunchPlan,
    *,
    workspace: str,
    home: str,
    user: str,
    files: tuple[tuple[str, str], ...],
    view: WorkspaceView | None = None,
    programs: tuple[tuple[ProgramRule, ...], ...] | None = None,
) -> LaunchPlan:
    """The plan of a box that lives long: the host's directory `workspace` is its /work and, the same, its `home`; of
    both it shows what the `view` says, if there is one. `files` are further ones of the host, shown read-only; `user`
    is "agent", or "root" of the box alone. With `programs` the exec judge decides on what is started."""
    guest_uid = 0 if user == "root" else GUEST_UID
    passwd = f"{user}:x:{guest_uid}:{guest_uid}:{user}:{home}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    texts = {"/etc/passwd": passwd, "/etc/group": f"{user}:x:{guest_uid}:\nnogroup:x:65534:\n"}
    return replace(
        base,
        guest_uid=guest_uid,
        binds=(*base.binds, *files),
        files=tuple((path, texts.get(path, text)) for path, text in base.files),
        writable=tuple((path, mode) for path, mode in base.writable if path != WORKSPACE),
        lent=((workspace, WORKSPACE), (workspace, home)) if view is None else (),
        parts=() if view is None else parts_of(view, workspace, home),
        hidden=() if view is None else tuple(aliases(view.hidden, home)),
        judge=programs is not None,
        exec_rules=None if programs is None else tuple(tuple(map(_exec_rule, rules)) for rules in programs),
        # Where the host calls it python3 alone; last in the box's search path.
        links=(*base.links, (f"{DURABLE_PROGRAMS}/python", "/usr/bin/python3")),
    )


def parts_of(view: WorkspaceView, workspace: str, home: str) -> tuple[tuple[str, str, str, bool], ...]:
    """The parts of a long-lived box's workspace that a view shows, at /work and at its other name, in the order in
    which they can be mounted."""
    shown = [*view.shown, *((path, False) for path in view.read_only if _is_covered(path, [WORKSPACE]))]
    return tuple(
        (workspace, path[len(WORKSPACE) :].strip("/"), f"{top}{path[len(WORKSPACE) :]}", writable)
        for top in (WORKSPACE, home)
        for path, writable in shown
    )


def aliases(paths: Iterable[str], home: str) -> Iterable[str]:
    """The paths, and those of the workspace by its other name too."""
    for path in paths:
        yield path
        if _is_covered(path, [WORKSPACE]):
            yield f"{home}{path[len(WORKSPACE) :]}"


@dataclass(frozen=True, slots=True)
class AgentView:
    """What a box that runs an agent shows besides the policy's files, and how it is watched.

    `directory` is the working directory. `shown` are host paths lent read-only: the command's own program and its
    modules, the guard. `command` is the program's real path and the words behind its name. `sources` are what is shown
    in place of a granted path, by path.
    """

    directory: str
    shown: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]
    command: tuple[str, tuple[str, ...]]
    channel: str
    home: str
    witness_all: bool = False
    checkpoint: bool = False
    sources: tuple[tuple[str, str], ...] = ()


def agent_plan(
    confinement: Confinement,
    host: HostView,
    view: AgentView,
    *,
    host_uid: int,
    host_gid: int,
    memory_held_by_cgroup: bool,
) -> LaunchPlan:
    """The plan of a box that shows a project at the host's own paths, as far as the policy grants it."""
    base = jail_plan(
        confinement, host, host_uid=host_uid, host_gid=host_gid, memory_held_by_cgroup=memory_held_by_cgroup
    )
    wide = _exactly_writable(confinement)
    grants = {
        grant.path: grant.writable
        for grant in confinement.files
        # A wider grant of writing wins over a narrower one of reading.
        if grant.present and (grant.writable or not _is_covered(grant.path, wide))
    }
    for denial in confinement.file_denials:
        if denial.present and not denial.hidden:
            grants[denial.path] = False
    # What a grant shows anyway needs no mount of its own.
    shown = [
        (source, target) for source, target in view.shown if not (source == target and _is_covered(source, grants))
    ]
    return replace(
        base,
        workspace=view.directory,
        binds=(*base.binds, *shown),
        files=(*base.files, *view.files),
        writable=(("/tmp", 0o1777), ("/dev/shm", 0o1777), (view.home, 0o700)),  # noqa: S108
        grants=tuple(sorted(grants.items())),
        sources=tuple((path, source) for path, source in view.sources if path in grants),
        hidden=tuple(denial.path for denial in confinement.file_denials if denial.present and denial.hidden),
        channel=view.channel,
        judge=True,
        witness_all=view.witness_all,
        checkpoint=view.checkpoint,
        exec_rules=exec_rules_of(confinement),
        command={"exe": view.command[0], "args": view.command[1]},
    )


@dataclass(frozen=True, slots=True)
class GuardView:
    """A guard directory of the host, where a box shows it, and where the guard's channel is."""

    directory: str
    shown_at: str
    channel: str


def watched_plan(
    plan: LaunchPlan,
    confinement: Confinement,
    command: tuple[str, tuple[str, ...]],
    guard: GuardView | None = None,
) -> LaunchPlan:
    """The plan of a box whose programs the exec judge sees, and under a policy decides on. `command` is the real path
    of the program that the owner starts, and the words behind its name: granted once."""
    held = confinement.policy_sha256 is not None
    return replace(
        plan,
        binds=(*plan.binds, (guard.directory, guard.shown_at)) if guard else plan.binds,
        channel=guard.channel if guard else plan.channel,
        judge=True,
        exec_rules=exec_rules_of(confinement) if held else None,
        command={"exe": command[0], "args": command[1]},
        staged=held,
    )


def exec_rules_of(confinement: Confinement) -> tuple[tuple[dict[str, object], ...], ...]:
    """What the exec judge decides by: a set of rules for each policy."""
    return tuple(tuple(map(_exec_rule, programs)) for programs in confinement.programs)


def judged_plan(plan: LaunchPlan, guard: GuardView | None = None) -> LaunchPlan:
    """The plan of boxes whose programs the exec judge will see, by rules that nobody knows yet."""
    return replace(plan, binds=(*plan.binds, (guard.directory, guard.shown_at)) if guard else plan.binds, judge=True)


def attached_plan(
    plan: LaunchPlan, *, name_server: str, through_user_namespace: bool, unix_listeners: tuple[str, ...] = ()
) -> LaunchPlan:
    """The plan of a box that joins a network namespace which was made for it, and asks `name_server` for names."""
    return replace(
        asking_plan(plan, name_server),
        joins=("user", "network") if through_user_namespace else ("network",),
        unix_listeners=unix_listeners,
    )


def asking_plan(plan: LaunchPlan, name_server: str) -> LaunchPlan:
    """The plan of a box whose programs ask `name_server` for names."""
    files = [(path, text) for path, text in plan.files if path != _RESOLVER]
    return replace(plan, files=(*files, (_RESOLVER, f"nameserver {name_server}\n")))


@dataclass(frozen=True, slots=True)
class WorkspaceView:
    """What a staged box shows of its workspace: (path, writable) in an order in which they can be mounted; then paths,
    anywhere in the box, that become read-only or hidden. `files` are written outside the workspace: path and text."""

    shown: tuple[tuple[str, bool], ...]
    read_only: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()


def workspace_view(confinement: Confinement, entry: str = "") -> WorkspaceView:
    """What the grants and denials of a policy leave of the workspace. `entry` is the program's own file in it, if it
    has one, which the interpreter must be able to read."""
    grants: dict[str, bool] = {}
    exact = _exactly_writable(confinement)
    for grant in confinement.files:
        path = WORKSPACE if _is_covered(WORKSPACE, [grant.path]) else grant.path
        if grant.present and _is_covered(path, [WORKSPACE]):
            grants[path] = grants.get(path, False) or grant.writable
    if entry:
        grants.setdefault(entry, False)
    shown: dict[str, bool] = {}
    for path, writable in sorted(grants.items(), key=lambda item: item[0].split("/")):
        # What a grant above shows in the same way needs no mount of its own, and must not get a narrower one; where the
        # one above is wider than its rule, a narrower one holds it.
        if not any(
            _is_covered(path, [above]) and (given == writable or (given and _is_covered(path, exact)))
            for above, given in shown.items()
        ):
            shown[path] = writable
    denials = [denial for denial in confinement.file_denials if denial.present]
    return WorkspaceView(
        tuple(shown.items()),
        tuple(denial.path for denial in denials if not denial.hidden),
        tuple(denial.path for denial in denials if denial.hidden),
    )


def _exactly_writable(confinement: Confinement) -> list[str]:
    """The paths at and below which everything may be written, as far as grants say."""
    return [grant.path for grant in confinement.files if grant.present and grant.writable and grant.held_by == "kernel"]


def _is_covered(path: str, grants: Iterable[str]) -> bool:
    return any(path == grant or path.startswith(grant.rstrip("/") + "/") for grant in grants)


def _exec_rule(rule: ProgramRule) -> dict[str, object]:
    return {
        "exe": rule.program or "",
        "name": rule.words[0],
        "args": rule.words[1:],
        "libexec": rule.libexec,
        "deny": rule.deny,
        "rule": rule.rule,
    }
