# SPDX-License-Identifier: MIT
"""Arming: from what the runner left in the environment to an audit hook, before any code of the guest runs.

What is missing or wrong ends the process: a guard that cannot arm must not look like one that has nothing to say.
"""

from __future__ import annotations

import posix
import sys
from posix import O_RDONLY, lstat, stat

from .answers import Answers
from .caps import Caps
from .channel import Channel, scan
from .client_effects import ClientEffects
from .effects import Effects
from .files import Files
from .interpreter import Interpreter
from .lanes import Lanes
from .large import Large
from .matching import covers, is_below
from .network import Network
from .observations import Observations
from .paths import Paths
from .processes import Processes
from .services import WRITING, Services
from .view import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ENCODING = sys.getfilesystemencoding()
_KIND, _SOCKET, _DIRECTORY = 0o170000, 0o140000, 0o040000
_MAX_POLICY_BYTES = 64 << 20
_MAX_ONCE = 10_000
_WORKSPACE = "/work"
_FORMAT = "agentbox-guard/1"
_INHERITED = (
    *("AGENTBOX_POLICY", "AGENTBOX_CHANNEL", "AGENTBOX_ROOT", "AGENTBOX_MODE", "AGENTBOX_ENFORCE", "AGENTBOX_WALL"),
    *("AGENTBOX_PRIVATE", "AGENTBOX_ENTRY", "PYTHONPATH", "NODE_OPTIONS"),
)


def _sha256() -> Any:
    """The hash function, without what `hashlib` loads; its module has had two names."""
    for name in ("_sha2", "_sha256") if sys.version_info >= (3, 12) else ("_sha256", "_sha2"):
        try:
            return __import__(name).sha256
        except ImportError:
            continue
    from hashlib import sha256

    return sha256


_HASH = _sha256()


class ArmingError(Exception):
    """The guard cannot arm; the message says why."""


def arm(directory: str, doors: Any, code: Any, door: Any, ready: Any) -> None:
    """Arm this interpreter. `directory` is the guard's own, `doors` the module of that name, `code` what `code_of`
    gave; `door` loads a further module of what a program can touch. `ready` is what `rehearse` gave, empty where it was
    not called. Raises ArmingError."""
    given = _environment()
    text, channel_path = _text(given), _channel_path(given)
    before = ready.pop() if ready else None
    if before is not None and before[0] == (_heeded(given), text):
        parts = before[1]
    else:
        parts = _parts(given, Answers(_tables(text, given, directory)), channel_path, doors, code)
    del before
    handlers, capped, forked, freeze = parts
    doors.lies_at(directory)
    doors.install(capped, tuple(WRITING) if capped else ())
    if freeze is None:
        posix.register_at_fork(after_in_child=forked)
    sys.addaudithook(doors.hook_over(handlers.get))
    if freeze is not None:
        # What is loaded already asks at once.
        freeze(door, forked)


def rehearse(doors: Any, code: Any, policy: str, variables: Any) -> Any:
    """Do what arming does under that policy, and arm nothing: the memory that it touches is this process's own then,
    and need not be copied when a run waits. What it gives is the armed parts themselves, for a run with that very
    policy; `variables` are what such a run finds in its environment besides this one."""
    given = {**_environment(), **variables}
    answers = Answers(scan(policy, 0)[0])
    parts = _parts(given, answers, given.get("AGENTBOX_CHANNEL", "/"), doors, code)
    # Files that are to be read once are looked at when they are there.
    return [] if answers.has_once else [((_heeded(given), policy), parts)]


def _heeded(given: dict[str, str]) -> Any:
    """What of an environment arming goes by."""
    return [given.get(name) for name in (*_INHERITED, "AGENTBOX_SEED", "AGENTBOX_CLOCKS")]


def _parts(given: dict[str, str], answers: Answers, channel_path: str, doors: Any, code: Any) -> Any:
    """The handlers of the hook, whether the policy has caps, what a forked child does first, and what makes a run one
    that can be replayed, None for one that cannot."""
    enforce = _one_of(given, "AGENTBOX_ENFORCE", {"1": True, "0": False}, "1")
    strict = _one_of(given, "AGENTBOX_WALL", {"jail": False, "none": True}, "none")
    replay = _one_of(given, "AGENTBOX_MODE", {"record": False, "replay": True}, "record")
    channel = Channel(channel_path)
    lanes = Lanes(not strict, _HASH)
    recorded = bool(given.get("AGENTBOX_SEED"))
    own_code = doors.hook_over.__code__.co_filename.rpartition("/guard/")[0] + "/"
    effects = Effects(channel, lanes, enforce, strict, replay, recorded, own_code)
    private = tuple([path for path in given.get("AGENTBOX_PRIVATE", "").split(":") if path[:1] == "/"])
    targets = tuple(answers.write_targets)

    def is_written(path: str) -> bool:
        return any(covers(target, path) for target in targets)

    view: Any = None

    def is_fixed(path: str) -> bool:
        # Below the directory where a pattern begins the kernel lets everything be changed.
        writable = any(is_below(path, target[1]) for target in targets)
        return enforce and view is not None and not writable and not view.is_private(path)

    paths = Paths(is_fixed)
    private = tuple([paths.resolve(path)[0] for path in private])
    entry = given.get("AGENTBOX_ENTRY", "")
    trees, modules = code
    view = View(trees, modules, private, answers.lent, paths.resolve(entry)[0] if entry else "", is_written)
    observations = Observations(effects, _HASH)
    caps = Caps(answers, effects)
    files = Files(answers, view, paths, effects, observations, caps)
    network = Network(answers, effects, view, paths, files)
    inherited = {
        name.encode(): given[name].encode(_ENCODING, "surrogateescape") for name in _INHERITED if name in given
    }
    processes = Processes(answers, effects, paths, files, inherited, observations.read_own)
    interpreter = Interpreter(effects, view, files, lanes)
    services = Services(files, network, processes, caps, effects)
    interpreter.is_loading = services.is_loading
    large = Large(effects)
    services.add("client", ClientEffects(effects, answers, large).ask)
    if answers.has_once:
        observations.once = _count_once(answers)
    handlers: dict[str, Any] = {doors.EVENT: services.on_event}
    for part in (files, network, processes, interpreter):
        handlers.update(part.handlers())
    freeze = None
    in_child = [channel.forked, lanes.forked, caps.forked, observations.forked]
    if recorded:
        from .freezing import freezing
        from .spawning import Spawning

        spawning = Spawning(effects, processes, services, files, observations, large, _HASH)
        handlers.update(spawning.handlers(handlers))
        in_child.append(spawning.forked)
        freeze = freezing(given, doors, effects, services, spawning, _HASH)
    return handlers, caps.active, _all(*in_child), freeze


def _all(*functions: Any) -> Any:
    def call() -> None:
        for function in functions:
            function()

    return call


def _environment() -> dict[str, str]:
    """The variables as the process got them, whatever `os.environ` says."""
    return {
        key.decode(_ENCODING, "surrogateescape"): value.decode(_ENCODING, "surrogateescape")
        for key, value in posix.environ.items()
    }


def _one_of(given: dict[str, str], name: str, meanings: Any, default: str) -> Any:
    value = given.get(name) or default
    if value not in meanings:
        raise ArmingError(f"{name} is {value!r}, not one of {', '.join(meanings)}")
    return meanings[value]


def _channel_path(given: dict[str, str]) -> str:
    path = given.get("AGENTBOX_CHANNEL", "")
    if not path:
        raise ArmingError("AGENTBOX_CHANNEL names no channel to the host")
    try:
        found = stat(path)
    except OSError as error:
        raise ArmingError(f"there is no channel at {path}: {error.strerror}") from None
    if found.st_mode & _KIND != _SOCKET:
        raise ArmingError(f"{path} is no socket")
    return path


def _text(given: dict[str, str]) -> str:
    """The policy that the runner wrote."""
    path = given.get("AGENTBOX_POLICY", "")
    if not path:
        raise ArmingError("AGENTBOX_POLICY names no policy")
    try:
        descriptor = posix.open(path, O_RDONLY)
        try:
            size = posix.fstat(descriptor).st_size
            data = posix.read(descriptor, min(size, _MAX_POLICY_BYTES) + 1)
            while 0 < len(data) < size:
                data += posix.read(descriptor, size - len(data)) or b"\0" * size
        finally:
            posix.close(descriptor)
    except OSError as error:
        raise ArmingError(f"cannot read the policy {path}: {error.strerror}") from None
    return data.decode("utf-8")


def _tables(text: str, given: dict[str, str], directory: str) -> Any:
    """The tables of that policy."""
    path = given.get("AGENTBOX_POLICY", "")
    if text[:1] == "{":
        try:
            tables = scan(text, 0)[0]
            if tables["format"] != _FORMAT:
                raise ArmingError(
                    f"the policy {path} is of the form {tables['format']!r}, this guard reads {_FORMAT!r}"
                )
        except (ValueError, KeyError, TypeError, StopIteration, SystemError) as error:
            raise ArmingError(f"the policy {path} is damaged: {type(error).__name__}") from None
        return tables
    return _read_text(text, given.get("AGENTBOX_ROOT") or posix.getcwd(), directory)


def _read_text(text: str, root: str, directory: str) -> Any:
    """The tables of a policy that is still text: slow, and in this process's view of the world."""
    before = set(sys.modules)
    sys.path.insert(0, directory + "/lib")
    try:
        from agentbox.guest.reading import tables_of_text

        return tables_of_text(text, root)
    except ImportError as error:
        raise ArmingError(f"the policy is text, and what reads it is not here: {error}") from None
    except ValueError as error:
        raise ArmingError(f"the policy is wrong: {error}") from None
    finally:
        sys.path.remove(directory + "/lib")
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "agentbox":
                del sys.modules[name]


def code_of(directory: str) -> Any:
    """The directories of the interpreter and its packages, and those where only modules are: by `sys.path` as it is
    before the program's own directory comes into it."""
    paths = Paths(lambda _: False)
    trees = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, directory]
    modules = []
    for place in sys.path:
        if place[:1] != "/":
            continue
        if place.endswith(("/site-packages", "/dist-packages")):
            trees.append(place)
        else:
            modules.append(place)
    found = []
    for places in (trees, modules):
        resolved: list[str] = []
        for place in places:
            full = paths.resolve(place)[0]
            if full not in resolved:
                resolved.append(full)
        found.append(tuple(resolved))
    return found


def _count_once(answers: Any) -> Any:
    """Expect the files of `read-once:` rules by what they are, so that another name is the same file."""
    expected: set[str] = set()
    waiting = [target[1] for target in answers.once_targets]
    while waiting and len(expected) < _MAX_ONCE:
        path = waiting.pop()
        try:
            found = lstat(path)
            if found.st_mode & _KIND == _DIRECTORY:
                waiting += [entry.path for entry in posix.scandir(path)]
                continue
        except OSError:
            continue
        if any(covers(target, path) for target in answers.once_targets):
            identity = f"{found.st_dev}:{found.st_ino}"
            expected.add(identity)
            answers.expect_once(identity)
    targets = tuple(answers.once_targets)

    def once(path: str, found: Any) -> Any:
        """What the host must know to count a file across processes."""
        identity = f"{found.st_dev}:{found.st_ino}"
        if identity in expected or any(covers(target, path) for target in targets):
            return {"identity": identity, "once": True}
        return None

    return once
