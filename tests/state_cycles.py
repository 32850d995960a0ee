# SPDX-License-Identifier: MIT
"""Random cycles of what can be done with a sandbox's state, held against a model of its workspace.

python -m tests.state_cycles --backend jail --cycles 200 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

from agentbox import Sandbox
from agentbox.errors import SandboxPausedError

Tree = dict[str, bytes]
MakeSandbox = Callable[..., Sandbox]
_NAMES = ("a", "b", "sub/c", "sub/deep/d", "other/e f", "caf\u00e9")
_TARGETS = ("/etc/passwd", "a", "../..", "nowhere")
_MAX_SNAPSHOTS = 3


def tree_of(workspace: str) -> Tree:
    """Path to what is there, of everything that lies in a directory of the host; no link is followed."""
    found: Tree = {}
    for directory, names, files in os.walk(workspace):
        for name in (*names, *files):
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                content = b"link " + os.fsencode(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                content = b"%o " % stat.S_IMODE(status.st_mode) + hashlib.sha256(path.read_bytes()).digest()
            else:
                content = b"directory"
            found[str(path.relative_to(workspace))] = content
    return found


class Cycles:
    """One sandbox after another, and what must be in its workspace. `make` takes the arguments of Sandbox and starts
    it; `done` says how often each step was taken."""

    def __init__(self, make: MakeSandbox, seed: int) -> None:
        self._make = make
        self._random = random.Random(seed)
        self._seed = seed
        self._name = f"cycles-{seed}"
        self._sandbox = make(workspace=self._name)
        self._expected: Tree = {}
        self._kept: list[tuple[str, Tree]] = []
        self.done: dict[str, int] = {}

    def run(self, count: int) -> None:
        """Take so many steps and compare after each. Raises AssertionError with seed and step."""
        steps = (self.pause, self.restart, self.fork, self.snapshot, self.restore, self.begin_with_snapshot)
        try:
            for number in range(count):
                # Each of them often enough, in any order.
                step = steps[number % len(steps)] if number < len(steps) else self._random.choice(steps)
                self._change()
                step()
                self.done[step.__name__] = self.done.get(step.__name__, 0) + 1
                self._compare(f"seed {self._seed}, step {number} ({step.__name__})")
        finally:
            self._sandbox.stop()

    def _compare(self, where: str) -> None:
        assert self._sandbox.workspace is not None
        found = tree_of(self._sandbox.workspace)
        assert found == self._expected, f"{where}: {sorted(found.items() ^ self._expected.items())[:4]}"

    def _change(self) -> None:
        """Some files made, changed, removed by programs inside; the model takes what is there when they have ended."""
        chosen, lines = self._random, ["set -e"]
        for _ in range(chosen.randrange(1, 5)):
            name = chosen.choice(_NAMES)
            what = chosen.randrange(5)
            if what == 0:
                lines.append(f"rm -rf '{name}'")
            elif what == 1:
                lines.append(
                    f"rm -rf '{name}'; mkdir -p \"$(dirname '{name}')\"; ln -s {chosen.choice(_TARGETS)} '{name}'"
                )
            else:
                size, mode = chosen.randrange(1, 200_000), chosen.choice(("600", "644", "755"))
                word = f"{chosen.getrandbits(64):x}"
                lines.append(
                    f"rm -rf '{name}'; mkdir -p \"$(dirname '{name}')\"; "
                    f"yes {word} | head -c {size} > '{name}'; chmod {mode} '{name}'"
                )
        done = self._sandbox.exec("\n".join(lines))
        assert done.exit_code == 0, done.stdout
        assert self._sandbox.workspace is not None
        self._expected = tree_of(self._sandbox.workspace)

    # ---- the steps

    def pause(self) -> None:
        """What is paused waits, and goes on where it was."""
        waiting = self._sandbox.exec('read line; echo "$line" > said; cat said', stdin=True, wait=0)
        self._sandbox.pause()
        try:
            self._sandbox.files.read("a")
            raise AssertionError("a paused sandbox answers")
        except SandboxPausedError:
            pass
        self._compare("paused")
        self._sandbox.resume()
        waiting.send(b"hello\n")
        assert waiting.wait(60)
        assert waiting.stdout == b"hello\n"
        self._sandbox.exec("rm said")

    def restart(self) -> None:
        """The box anew; where the workspace has a name, also the sandbox."""
        assert self._sandbox.workspace is not None
        if Path(self._sandbox.workspace).name != self._name:
            self._sandbox.reset()
            return
        self._sandbox.stop()
        self._sandbox = self._make(workspace=self._name)

    def fork(self) -> None:
        """Go on in one of two forks, while what the parent does next is seen by neither."""
        forks = self._sandbox.fork(2)
        chosen = forks.pop(self._random.randrange(2))
        self._sandbox.exec("rm -rf * ; echo parent > parent")
        for one in (*forks, self._sandbox):
            one.stop()
        self._sandbox = chosen

    def snapshot(self) -> None:
        """Keep one, and forget the oldest."""
        taken = self._sandbox.snapshot(f"of seed {self._seed}")
        self._kept.append((taken.snapshot_id, dict(self._expected)))
        if len(self._kept) > _MAX_SNAPSHOTS:
            self._sandbox.delete_snapshot(self._kept.pop(0)[0])

    def restore(self) -> None:
        """The workspace as it was in any snapshot, also in one of another sandbox."""
        if self._kept:
            snapshot_id, self._expected = self._random.choice(self._kept)
            running = self._sandbox.exec("sleep 1000", wait=0)
            self._sandbox.restore(snapshot_id)
            assert running.wait(60)

    def begin_with_snapshot(self) -> None:
        """Another sandbox, of a snapshot."""
        if self._kept:
            snapshot_id, self._expected = self._random.choice(self._kept)
            self._sandbox.stop()
            self._sandbox = self._make(snapshot=snapshot_id)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="jail")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()

    def make(**how: object) -> Sandbox:
        sandbox = Sandbox(backend=asked.backend, memory="512m", **how)  # type: ignore[arg-type]
        sandbox.start()
        return sandbox

    cycles = Cycles(make, asked.seed)
    cycles.run(asked.cycles)
    print(f"{asked.cycles} cycles on {asked.backend}, seed {asked.seed}: nothing was lost: {cycles.done}")


if __name__ == "__main__":
    main()
