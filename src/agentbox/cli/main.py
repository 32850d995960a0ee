# SPDX-License-Identifier: MIT
"""The `agentbox` command: a front door that is light to open.

`agentbox run` stands before every start of a program, so front.py reads its words without click, replaying.py those of
`agentbox replay`, and checking.py those of `agentbox verify`; everything else, help and errors included, is left to the
commands (commands.py).
"""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

# Of exit_codes.py, which imports more.
INTERRUPTED = 130
FAILURE = 1


def main() -> None:
    """Entry point of the `agentbox` script."""
    if sys.argv[1:2] == ["run"] and "--" in sys.argv:
        # Nothing that is made before the command runs is garbage; agent_run.py turns the collector on again.
        gc.disable()
        from agentbox.light import bundle

        modules = bundle.use()
        modules.load("front")
        from agentbox.cli.front import read_words, run_at_once

        options = read_words(sys.argv[2:])
        if options is not None:
            code = _guarded(lambda: run_at_once(options))
            modules.keep()
            _leave(code)
        gc.enable()
    if sys.argv[1:2] == ["replay"] and "--help" not in sys.argv:
        gc.disable()
        from agentbox.light import bundle

        modules = bundle.use()
        modules.load("front")
        from agentbox.cli import replaying

        wanted = replaying.read_words(sys.argv[2:])
        if wanted is not None:
            code = _guarded(lambda: replaying.replay_at_once(wanted))
            modules.keep()
            _leave(code)
        gc.enable()
    if sys.argv[1:2] == ["verify"]:
        gc.disable()
        from agentbox.light import bundle

        modules = bundle.use()
        modules.load("verify")
        from agentbox.cli import checking

        gc.freeze()
        gc.enable()
        asked = checking.read_words(sys.argv[2:])
        if asked is not None:
            code = _guarded(lambda: checking.check(asked))
            modules.keep()
            _leave(code)
    sys.exit(_guarded(_run_command))


def _run_command() -> int:
    from agentbox.cli.commands import run_command

    return run_command()


def _guarded(command: Callable[[], int]) -> int:
    """The exit code of a command, whatever ends it."""
    try:
        return command()
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else FAILURE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`agentbox doctor | head`); the flush at exit must not complain again.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        return FAILURE
    except Exception as error:
        from agentbox.cli.console import tell

        tell(
            f"internal error: {type(error).__name__}: {error} ({_where(error)})",
            "this is a bug of agentbox: please report it with this line and the output of `agentbox doctor --json`",
        )
        return FAILURE


def _where(error: BaseException) -> str:
    """The innermost places of a traceback, the last one first."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in reversed(frames))


def _leave(code: int) -> NoReturn:
    """End the process at once: taking an interpreter down in good order takes as long as starting half of one."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed, or nobody reads it any more.
            continue
    os._exit(code)


if __name__ == "__main__":
    main()
