# SPDX-License-Identifier: MIT
"""A recorded run of /v1/run once more: the kept request in a new box, answered from its trace."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentbox.engine.guarding import CHANNEL, POLICY, Guards, guarded_environment
from agentbox.engine.keeping import Keeping, Kept
from agentbox.engine.replaying import Player
from agentbox.engine.run_policy import prepare
from agentbox.engine.run_recording import digest_of, workspace_touched
from agentbox.engine.supervisor import supervise
from agentbox.engine.threads import in_thread
from agentbox.engine.walk import base_environment
from agentbox.errors import AgentboxError
from agentbox.guest.injection import GUARD_DIR, policy_file
from agentbox.isolation.backend import Watch
from agentbox.isolation.plan import WORKSPACE, GuardView
from agentbox.light import contextlib, digests
from agentbox.records import replace
from agentbox.replay.comparison import Ending, Written, compare_ends
from agentbox.replay.cursor import Cursor
from agentbox.replay.divergence import Divergence, DivergenceKind
from agentbox.replay.report import Report
from agentbox.workspace.placing import place_files
from agentbox.workspace.tree import Tree

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from agentbox.engine.walk import Decided
    from agentbox.isolation.backend import LiveBox
    from agentbox.replay.recording import Recording, Step
    from agentbox.workspace.snapshots import SnapshotStore


class RunReplay:
    """One replay. `decided` is the kept request, decided by the server's settings of today; `blobs` where its bytes
    are."""

    def __init__(
        self,
        decided: Decided,
        recording: Recording,
        blobs: str,
        guards: Guards,
        snapshots: SnapshotStore,
        threads: ThreadPoolExecutor,
        max_total_output_bytes: int,
    ) -> None:
        self._decided = decided
        self._recording = recording
        self._kept = Kept(blobs)
        self._guards = guards
        self._snapshots = snapshots
        self._threads = threads
        self._max_total_output_bytes = max_total_output_bytes
        self._cursor = Cursor(recording)
        self._given: dict[str, Any] = {}
        self._tree: Tree | None = None

    async def go(self) -> Report:
        """Replay it to its end, or to where it diverges. Raises what a run raises when it cannot begin."""
        report = Report(0, self._recording.total, self._preconditions())
        if report.divergences:
            report.started = False
            return report
        box: LiveBox | None = None

        def diverged() -> None:
            if box is not None:
                box.kill()

        player = Player(self._cursor, self._kept, diverged, self._on_spawn)
        try:
            box = await self._build(player)
            await self._run(box, player, report)
        finally:
            if box is not None:
                await box.destroy()
            await player.finish()
        return report

    async def _run(self, box: LiveBox, player: Player, report: Report) -> None:
        decided, recording, tree = self._decided, self._recording, Tree(box.workspace_fd, *box.ids)
        self._tree = tree
        touched = workspace_touched(tree, Keeping(""))
        try:
            before = await asyncio.to_thread(touched.look)
            ending = await supervise(
                box,
                self._argv(),
                self._environment(),
                stdin=decided.request.stdin,
                limits=decided.limits,
                max_total_output_bytes=self._max_total_output_bytes,
            )
            await player.finish()
            report.matched = self._cursor.matched
            if self._cursor.divergence is not None:
                report.divergences.append(self._cursor.divergence)
                return
            report.exit_code = ending.exit_code
            report.divergences += self._cursor.unfinished()
            files = None if before is None else await asyncio.to_thread(touched.changed_since, before)
        finally:
            touched.close()
        if files is None:
            report.notes.append("there are too many files to compare")
        streams = {
            "stdout": Written(ending.stdout.total_bytes, digest_of(ending.stdout), ending.stdout.data),
            "stderr": Written(ending.stderr.total_bytes, digest_of(ending.stderr), ending.stderr.data),
        }
        now = Ending(ending.exit_code, streams, self._with_given(self._changed(files or {})))
        report.divergences += compare_ends(recording, now, self._recorded_bytes)

    def _preconditions(self) -> list[Divergence]:
        policy = self._decided.policy
        now = policy.policy.policy_sha256 if policy is not None else ""
        if now == self._recording.policy_sha256:
            return []
        return [
            Divergence(
                DivergenceKind.POLICY,
                0,
                "the policy is not the one that it was recorded under: the operator's was changed",
                expected={"policy_sha256": self._recording.policy_sha256},
                observed={"policy_sha256": now},
            )
        ]

    async def _build(self, player: Player) -> LiveBox:
        decided, policy = self._decided, self._decided.policy
        assert policy is not None
        python = decided.found.path if decided.interpreter.name == "python" else None
        directory = self._guards.known(python) or await self._in_thread(self._guards.directory, python)
        program, *words = self._argv()
        watch = Watch(
            (os.path.realpath(program), tuple(words)),  # noqa: ASYNC240 - a program of the host
            player.seen,
            GuardView(str(directory), GUARD_DIR, CHANNEL),
        )
        # Nothing is started but the program itself, and it has no network.
        box = await decided.backend.launch(replace(policy.confinement, programs=((),)), None, watch, None, None)
        try:
            tree = Tree(box.workspace_fd, *box.ids)
            prepared = await self._in_thread(self._filled, tree)
            guard_file = policy.reading.guard_file(prepared.policy, policy_file)
            await box.show(replace(prepared.view, files=((POLICY, guard_file),)))
            assert box.channel is not None
            player.listen(box.channel)
        except BaseException:
            await box.destroy()
            raise
        return box

    def _filled(self, tree: Tree) -> Any:
        decided = self._decided
        request, entry = decided.request, decided.interpreter.entry_file
        if request.snapshot_id:
            self._snapshots.restore(request.owner, request.snapshot_id, tree)
        place_files(tree, {**request.files, entry: request.code.encode("utf-8", "surrogateescape")})
        assert decided.policy is not None
        return prepare(decided.policy, tree, entry, decided.found, guarded=True)

    def _argv(self) -> list[str]:
        decided = self._decided
        script = f"{WORKSPACE}/{decided.interpreter.entry_file}"
        return [*decided.interpreter.argv(decided.found.path, script, decided.limits.memory_mb), *decided.request.args]

    def _environment(self) -> dict[str, str]:
        decided = self._decided
        assert decided.policy is not None
        base = {**base_environment(decided.found), **decided.policy.passed}
        return guarded_environment(
            base,
            kind=decided.interpreter.name,
            root=WORKSPACE,
            entry=f"{WORKSPACE}/{decided.interpreter.entry_file}",
            seed=self._recording.seed,
            mode="replay",
        )

    def _on_spawn(self, step: Step) -> None:
        """A program's result is given: what it wrote is there before."""
        files = self._recording.spawned.get(step.index, {}).get("files")
        if not isinstance(files, dict) or self._tree is None:
            return
        for path, state in files.items():
            data = self._kept.read(str(state.get("sha256"))) if isinstance(state, dict) else None
            if data is not None:
                self._given[path] = state
                with contextlib.suppress(AgentboxError):
                    place_files(self._tree, {path[len(WORKSPACE) + 1 :]: data})

    def _with_given(self, files: Mapping[str, Any]) -> dict[str, Any]:
        """The changed files; those that a program left are compared by their content, not by their modes."""
        found = dict(files)
        for path, state in self._given.items():
            now = found.get(path)
            if isinstance(now, dict) and now.get("sha256") == state.get("sha256"):
                found[path] = {**now, "mode": state.get("mode")}
        return found

    def _changed(self, files: Mapping[str, Any]) -> dict[str, Any]:
        """Without the files of the request that were written again as they were."""
        given = {
            f"{WORKSPACE}/{path}": digests.sha256(content).hexdigest()
            for path, content in self._decided.request.files.items()
        }
        return {
            path: state
            for path, state in files.items()
            if path in self._recording.written or state is None or given.get(path) != state.get("sha256")
        }

    def _recorded_bytes(self, facts: Mapping[str, Any]) -> bytes | None:
        name = facts.get("kept")
        return self._kept.read(name) if isinstance(name, str) else None

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        return await in_thread(self._threads, work, *arguments)
