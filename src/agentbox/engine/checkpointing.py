# SPDX-License-Identifier: MIT
"""The checkpoint of a run: taken once, before the first change of any kind, or the change does not happen."""

from __future__ import annotations

import os

from agentbox.errors import AgentboxError, CheckpointError
from agentbox.light import asyncio, contextlib
from agentbox.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from agentbox.models import Confinement
    from agentbox.trace import frames
    from agentbox.workspace.checkpoint_entries import Entry
    from agentbox.workspace.checkpoint_scan import Scope

UNDO = "agentbox undo"
SNAPBACK = "snapback"
_SNAPBACK_UNDO = "snapback undo"
_SNAPBACK_SECONDS = 600
# What snapback is not to inherit: its own start must not be the run's.
_KEPT_BACK = ("PYTHONPATH", "NODE_OPTIONS")
_MAX_DETAIL = 1000
# Operations that guards and the SDK ask about before they happen, and that change something.
CHANGES = frozenset(
    {
        "fs.open_write", "fs.remove", "fs.rename", "fs.mkdir", "fs.link", "fs.symlink", "fs.chmod", "fs.chown",
        "fs.utime", "fs.xattr", "fs.truncate", "fs.mkfifo", "fs.mknod", "fs.write_text", "proc.spawn", "proc.run",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A checkpoint that was taken: its id, how to go back to it, and the digest of what it keeps."""

    id: str
    undo: str
    sha256: str


class Checkpointing:
    """Takes the checkpoint of one run. Made when the run is prepared: what it may write is noted then, and a directory
    that was put in the place of another one later is not taken for it.

    `name` is the checkpoint's own, `made` what was made for the run's sake, `own` paths of agentbox's. `on_taken` gets
    the arguments and the result of the record.
    """

    def __init__(
        self,
        directory: str,
        name: str,
        run_id: str,
        confinement: Confinement,
        *,
        made: Sequence[str],
        own: Sequence[str],
        environment: Mapping[str, str],
        on_taken: Callable[[dict[str, Any], dict[str, Any]], None],
    ) -> None:
        self._directory = directory
        self._name = name
        self._run_id = run_id
        self._made = frozenset(made)
        self._environment = environment
        self._on_taken = on_taken
        self._writable = [grant.path for grant in confinement.files if grant.writable and grant.present]
        denied = [denial.path for denial in confinement.file_denials if denial.present]
        links = [f"{directory}/{name}" for name in ("trace.jsonl", ".agentbox", ".snapback")]
        self._excluded = frozenset([*denied, *own, *links])
        self._identities = _identities(self._writable)
        self._here = _identity(directory)
        self._scope: Scope | None = None
        self._before: dict[str, Entry] | None = None
        self._taking: asyncio.Task[str] | None = None
        self._held = -1
        self.taken: Checkpointed | None = None

    async def before(self, request: frames.Request) -> str:
        """Take the checkpoint, if that was not done yet, before what a guard asks about. Gives why it must not happen,
        '' when it may."""
        if request.op not in CHANGES:
            return ""
        args = request.args
        detail = args.get("path") or args.get("argv")
        if isinstance(detail, list):
            detail = " ".join(word for word in detail if isinstance(word, str))
        return await self.take(request.op, detail if isinstance(detail, str) else "")

    async def take(self, tool: str, detail: str) -> str:
        """Take the checkpoint, if that was not done yet, since `tool` is about to change `detail`. Gives why it could
        not be taken, '' when it was: once for all."""
        if self._taking is None:
            self._taking = asyncio.create_task(self._take(tool, detail[:_MAX_DETAIL]))
        return await asyncio.shield(self._taking)

    async def _take(self, tool: str, detail: str) -> str:
        args = {"tool": tool, "detail": detail}
        try:
            self.taken = await asyncio.to_thread(self._taken, tool, detail)
        except (AgentboxError, OSError) as error:
            message = error.message if isinstance(error, AgentboxError) else str(error)
            hint = error.hint if isinstance(error, AgentboxError) else ""
            why = f"checkpoint failed: {message}" + (f" ({hint})" if hint else "")
            self._on_taken(args, {"error": why})
            return why
        result = {"snapshot": self.taken.id, "undo": self.taken.undo, "sha256": self.taken.sha256}
        self._on_taken(args, result)
        return ""

    def _taken(self, tool: str, detail: str) -> Checkpointed:
        from agentbox.workspace.checkpoint_scan import Scope, outermost
        from agentbox.workspace.checkpoint_store import CheckpointStore
        from agentbox.workspace.snapback_ignores import ignored_by_project

        if _identity(self._directory) != self._here:
            raise CheckpointError(
                f"{self._directory} is not the directory that the run began in: it was replaced",
                hint="start the run again, and let nothing replace its directory",
            )
        program = _program(SNAPBACK, self._environment, self._directory)
        snapshot = self._by_snapback(program, tool, detail) if program else ""
        scope = Scope(
            self._directory,
            outermost(self._writable),
            self._excluded,
            ignored_by_project(self._directory),
            self._identities,
        )
        store = CheckpointStore(self._directory)
        before = store.take(self._name, self._run_id, scope, self._made, snapshot)
        self._scope, self._before = scope, before
        self._held = store.hold(self._name)
        sha256 = str(store.get(self._name).details["sha256"])
        return Checkpointed(snapshot or self._name, _SNAPBACK_UNDO if snapshot else UNDO, sha256)

    def _by_snapback(self, program: str, tool: str, detail: str) -> str:
        """The id of a snapshot that snapback takes. Raises CheckpointError."""
        import subprocess

        message = f"agentbox: before {tool} {detail}".replace("\0", "?").encode("utf-8", "backslashreplace").decode()
        environment = {
            name: value
            for name, value in self._environment.items()
            if name not in _KEPT_BACK and not name.startswith("AGENTBOX")
        }
        try:
            done = subprocess.run(
                [program, "snap", "-m", message],
                cwd=self._directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SNAPBACK_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckpointError(f"{program} could not take a snapshot: {error}", hint="run it by hand") from error
        words = done.stdout.decode("utf-8", "replace").split()
        if done.returncode != 0 or not words:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
            raise CheckpointError(
                f"{program} snap ended with {done.returncode}: {said[-1] if said else 'it said nothing'}",
                hint=f"run `{SNAPBACK} snap` in {self._directory}, or uninstall it: agentbox has a store of its own",
            )
        return words[-1]

    async def note_changes(self) -> list[str]:
        """Note what changed since the checkpoint, when everything that ran is gone. Gives what the user should know."""
        if self._taking is not None:
            await asyncio.wait({self._taking})
        if self.taken is None:
            return []
        try:
            await asyncio.to_thread(self._note)
        except (AgentboxError, OSError) as error:
            message = error.message if isinstance(error, AgentboxError) else str(error)
            return [f"what the run changed could not be noted: {message}; `agentbox undo --force` undoes it"]
        finally:
            os.close(self._held)
        return []

    def _note(self) -> None:
        from agentbox.workspace.checkpoint_scan import Scope
        from agentbox.workspace.checkpoint_store import CheckpointStore

        assert self._scope is not None
        assert self._before is not None
        # What was replaced since is what the run, or somebody beside it, did.
        scope = Scope(self._directory, self._scope.roots, self._scope.excluded, self._scope.ignored)
        CheckpointStore(self._directory).note_changes(self._name, scope, self._before)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _identities(paths: Sequence[str]) -> dict[str, tuple[int, int]]:
    return {path: found for path in paths if (found := _identity(path)) is not None}


def _program(name: str, environment: Mapping[str, str], directory: str) -> str:
    """The program of that name on PATH, '' for none. What lies in the project may come from a run, and is not it."""
    for place in environment.get("PATH", os.defpath).split(os.pathsep):
        if not place.startswith("/"):
            continue
        path = f"{place}/{name}"
        with contextlib.suppress(OSError):
            real = os.path.realpath(path)
            if real != directory and real.startswith(directory.rstrip("/") + "/"):
                continue
            if os.path.isfile(real) and os.access(path, os.X_OK):
                return path
    return ""
