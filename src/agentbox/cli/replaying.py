# SPDX-License-Identifier: MIT
"""`agentbox replay` from its words to its exit code, importing little more than a run does. Its words as a user may
misspell them, and its help, are replay.py's, which uses click."""

from __future__ import annotations

import os
import sys

from agentbox.cli.console import errors_are_lines, load_settings, say
from agentbox.cli.front import DEFAULT_POLICY, forked_launcher, open_closed_streams, policy_of, working_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbox.isolation.launcher.forked import Forked
    from agentbox.light import socket
    from agentbox.replay.report import Report

DEFAULT_TRACE = "trace.jsonl"


class Options:
    """What `agentbox replay` was told."""

    def __init__(self) -> None:
        self.policy = DEFAULT_POLICY
        self.trace = DEFAULT_TRACE
        self.as_json = False
        self.quiet = False
        self.command: tuple[str, ...] = ()


_WITH_VALUE = {"-p": "policy", "--policy": "policy", "-t": "trace", "--trace": "trace"}
_FLAGS = {"--json": "as_json", "-q": "quiet", "--quiet": "quiet"}


def read_words(words: Sequence[str]) -> Options | None:
    """The options of `replay [OPTIONS] [-- COMMAND]`, or None for what only the whole parser can read or explain."""
    end = words.index("--") if "--" in words else len(words)
    options = Options()
    options.command = tuple(words[end + 1 :])
    waiting = list(reversed(words[:end]))
    while waiting:
        word = waiting.pop()
        if word in _FLAGS:
            setattr(options, _FLAGS[word], True)
            continue
        if word not in _WITH_VALUE or not waiting or not waiting[-1] or waiting[-1].startswith("-"):
            return None
        setattr(options, _WITH_VALUE[word], waiting.pop())
    return options


def replay_at_once(options: Options) -> int:
    """Replay in a process that does nothing else; its exit code."""
    open_closed_streams()
    launcher = forked_launcher()
    try:
        return _replay(options, launcher)
    finally:
        if launcher is not None:
            process, sock = launcher
            sock.close()
            process.wait()


def _replay(options: Options, launcher: tuple[Forked, socket.socket] | None) -> int:
    from agentbox import light
    from agentbox.light import bundle

    bundle.load("begin")
    with errors_are_lines():
        directory = working_directory()
        settings = load_settings()
        from agentbox.config import process_environment
        from agentbox.engine.limits import agent_limits
        from agentbox.errors import AgentboxError
        from agentbox.isolation.early import open_facilities

        limits = agent_limits(settings)
        facilities = open_facilities(launcher, limits)
        try:
            bundle.load("plan")
            light.choose()
            bundle.load("replay")
            judged = _Judged(options)
            try:
                policy = policy_of(options.policy)
            except AgentboxError:
                if not judged.is_trusted():
                    return judged.code
                raise
            from agentbox.engine.agent_replay import ReplayRequest, replay_agent
            from agentbox.engine.policy_world import HostFiles
            from agentbox.engine.search_path import with_plain_path

            request = ReplayRequest(
                trace=os.path.abspath(options.trace),
                argv=options.command,
                policy=policy,
                directory=directory,
                environment=with_plain_path(process_environment(), directory),
                limits=limits,
                shows_output=not options.quiet,
            )
            report = light.asyncio.run(replay_agent(request, settings, HostFiles(), facilities, judged.is_trusted))
        finally:
            facilities.drop()
    if report is None:
        return judged.code
    _print(report, as_json=options.as_json)
    from agentbox.cli import exit_codes

    return exit_codes.OK if report.ok else exit_codes.FAILURE


class _Judged:
    """The trace's verdict, `code` its exit code."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.code = 0

    def is_trusted(self) -> bool:
        """Whether the trace is what was written; says what it is where it is not. Raises TraceError."""
        from agentbox.light import bundle, digests

        bundle.load("replayed")
        # It comes with an OpenSSL that checks signatures, in less time than loading another takes.
        digests.use_the_fastest()
        code = _unfit(self._options.trace, as_json=self._options.as_json)
        self.code = code or 0
        return code is None


def _unfit(trace: str, *, as_json: bool) -> int | None:
    """The exit code for a trace that is not what was written, which is said; None for one that is."""
    from agentbox.cli import exit_codes
    from agentbox.cli.checking import Options as Asked
    from agentbox.cli.checking import check_quietly

    code, words = check_quietly(Asked(trace))
    if code == exit_codes.OK:
        return None
    if as_json:
        from agentbox.replay.divergence import Divergence, DivergenceKind
        from agentbox.replay.report import Report

        text = "; ".join(line.removeprefix("agentbox: ").strip() for line in words)
        divergence = Divergence(DivergenceKind.TRACE, 0, text)
        _print(Report(0, 0, [divergence], started=False, trace=os.path.abspath(trace)), as_json=True)
        return code
    for line in words:
        sys.stderr.write(f"{line}\n")
    say("nothing was started")
    return code


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        import json

        sys.stderr.write(json.dumps(report.as_dict()) + "\n")
        return
    try:
        sys.stdout.write("\n".join(report.lines()) + "\n")
        sys.stdout.flush()
    except OSError:
        # Nobody reads it any more; the flush at exit must not complain again.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
