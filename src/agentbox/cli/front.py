# SPDX-License-Identifier: MIT
"""`agentbox run` from its words to its exit code, importing as little as it can: it stands before every start of a
program. Its words as a user may misspell them, and its help, are run.py's, which uses click."""

from __future__ import annotations

import os
import sys

from agentbox.cli.console import errors_are_lines, load_settings, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbox.engine.agent_run import AgentOutcome
    from agentbox.isolation.launcher.forked import Forked
    from agentbox.light import socket
    from agentbox.policy.document import Policy

DEFAULT_POLICY = "agentbox.policy"
ISOLATIONS = ("auto", "jail", "gvisor", "docker", "guard")
# Those that are no jail of ours.
_OTHERS = ("gvisor", "docker")
WITNESSES = ("off", "exec", "all")
_LOOKED_AT_BYTES = 1 << 16


class Options:
    """What `agentbox run` was told."""

    def __init__(self) -> None:
        self.policy = DEFAULT_POLICY
        self.trace: str | None = None
        self.isolation = "auto"
        self.observe = False
        self.checkpoint = False
        self.live_clocks = False
        self.hash_bodies = False
        self.witness = "exec"
        self.as_json = False
        self.quiet = False
        self.command: tuple[str, ...] = ()

    @property
    def walled(self) -> bool:
        """Whether the command runs in a box."""
        return self.isolation != "guard" and not self.observe

    @property
    def kind(self) -> str:
        """What holds the command: `jail`, `gvisor`, `docker`, or `guard` alone."""
        return (self.isolation if self.isolation in _OTHERS else "jail") if self.walled else "guard"


_WITH_VALUE = {"-p": "policy", "--policy": "policy", "-t": "trace", "--trace": "trace"}
_WITH_VALUE |= {"--isolation": "isolation", "--witness": "witness"}
_FLAGS = {
    "--observe": "observe",
    "--checkpoint": "checkpoint",
    "--live-clocks": "live_clocks",
    "--hash-bodies": "hash_bodies",
    "--json": "as_json",
    "-q": "quiet",
    "--quiet": "quiet",
}


def read_words(words: Sequence[str]) -> Options | None:
    """The options of `run [OPTIONS] -- COMMAND`, or None for what only the whole parser can read or explain."""
    if "--" not in words:
        return None
    end = words.index("--")
    options = Options()
    options.command = tuple(words[end + 1 :])
    waiting = list(reversed(words[:end]))
    while waiting:
        word = waiting.pop()
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _FLAGS and not equals:
            setattr(options, _FLAGS[name], True)
        elif name in _WITH_VALUE:
            if not equals and not waiting:
                return None
            value = value if equals else waiting.pop()
            if not value or (not equals and value.startswith("-")):
                return None
            setattr(options, _WITH_VALUE[name], value)
        else:
            return None
    known = options.isolation in ISOLATIONS and options.witness in WITNESSES
    return options if known and options.command else None


def run_at_once(options: Options) -> int:
    """Run the command in a process that does nothing else; its exit code."""
    open_closed_streams()
    # The boxes of others are not begun before their plan is there.
    launcher = forked_launcher() if options.kind == "jail" else None
    try:
        return _run(options, launcher)
    finally:
        if launcher is not None:
            process, sock = launcher
            sock.close()
            process.wait()


def forked_launcher() -> tuple[Forked, socket.socket] | None:
    """The launcher of the run, before this process has grown; None where a new one must be started."""
    if sys.platform != "linux":
        return None
    from agentbox.isolation.launcher.forked import fork_launcher
    from agentbox.linux.cgroup_grace import begin_grace_period

    try:
        launcher = fork_launcher()
    except OSError:
        return None
    # Its box will join control groups.
    begin_grace_period()
    return launcher


def _run(options: Options, launcher: tuple[Forked, socket.socket] | None) -> int:
    from agentbox import light
    from agentbox.light import bundle

    bundle.load("begin")
    with errors_are_lines():
        directory = working_directory()
        settings = load_settings()
        from agentbox.config import process_environment
        from agentbox.engine.limits import agent_limits
        from agentbox.isolation.early import open_facilities

        limits = agent_limits(settings)
        facilities = open_facilities(launcher, limits, joins=_may_open_network(options.policy))
        try:
            bundle.load("plan")
            policy = policy_of(options.policy)
            opens = options.walled and any(rule.verb == "net" and not rule.deny for rule in policy.rules)
            if options.kind not in _OTHERS and not opens:
                # The gateway's protocols, gVisor's boxes and containers want the standard library's loop.
                light.choose()
            from agentbox.engine.agent_run import AgentRequest, run_agent
            from agentbox.engine.policy_world import HostFiles
            from agentbox.engine.search_path import with_plain_path

            request = AgentRequest(
                argv=options.command,
                policy=policy,
                directory=directory,
                environment=with_plain_path(process_environment(), directory),
                limits=limits,
                trace=options.trace,
                isolation=options.kind,
                observe=options.observe,
                witness=options.witness,
                checkpoint=options.checkpoint,
                live_clocks=options.live_clocks,
                hash_bodies=options.hash_bodies,
            )
            outcome = light.asyncio.run(run_agent(request, settings, HostFiles(), facilities))
        finally:
            facilities.drop()
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    if outcome.problem:
        say(outcome.problem)
    if not options.quiet:
        _summarize(outcome, options.as_json)
    if outcome.recorded:
        return outcome.exit_code
    from agentbox.cli import exit_codes

    return exit_codes.TRACE_INCOMPLETE


def open_closed_streams() -> None:
    """A stream that the caller closed becomes /dev/null: else a file of ours gets its number, and so the command."""
    for number, flags in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def working_directory() -> str:
    """The directory that relative paths of policy and command start from. Raises InvalidRequestError."""
    try:
        directory = os.path.realpath(os.getcwd())
        os.close(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
    except OSError as error:
        from agentbox.errors import InvalidRequestError

        raise InvalidRequestError(
            f"the working directory cannot be used: {error.strerror}", hint="change to a directory that exists"
        ) from error
    return directory


def _may_open_network(path: str) -> bool:
    """A first look at a policy that was not read yet: whether it may have rules that open the network. What it says
    is only about how fast the box is there."""
    try:
        # What is no file can be read once.
        if not os.path.isfile(path):
            return True
        with open(path, "rb", buffering=0) as file:
            text = file.read(_LOOKED_AT_BYTES).lower()
    except OSError:
        return True
    return b"net" in text or b"include" in text or len(text) == _LOOKED_AT_BYTES


def policy_of(path: str) -> Policy:
    """The policy of a file. Raises PolicyError; a wrong text is shown with a caret below it."""
    from agentbox.engine.policy_world import load_policy
    from agentbox.errors import PolicyError, PolicySyntaxError

    try:
        return load_policy(path)
    except PolicySyntaxError as error:
        if error.source:
            error.message += f"\n    {error.source}\n    {error.caret}"
        raise
    except PolicyError as error:
        if not os.path.lexists(path):
            error.hint = "`agentbox init` writes a first agentbox.policy; -p names another file"
        raise


def _summarize(outcome: AgentOutcome, as_json: bool) -> None:
    """The last line. That nobody reads it any more (`| head`) is no failure of the run."""
    counts = {kind: outcome.counts.get(kind, 0) for kind in ("effect", "observe", "deny")}
    if as_json:
        import json

        from agentbox.records import asdict

        summary = {
            "exit_code": outcome.exit_code,
            "run_id": outcome.run_id,
            "trace": os.path.abspath(outcome.trace),
            "recorded": outcome.recorded,
            "problem": outcome.problem,
            "warnings": outcome.warnings,
            "startup_files": outcome.startup_files,
            "enforcement": asdict(outcome.enforcement),
            "egress": {host: asdict(seen) for host, seen in outcome.egress.items()},
            "notes": outcome.notes,
            "checkpoint": asdict(outcome.checkpoint) if outcome.checkpoint else None,
            **counts,
        }
        sys.stderr.write(json.dumps(summary) + "\n")
        return
    effects, observations, denials = counts.values()
    shown = os.path.relpath(outcome.trace)
    if shown.startswith(os.pardir):
        shown = os.path.abspath(outcome.trace)
    try:
        sys.stdout.write(
            f"agentbox: recorded {effects} effects, {observations} observations, {denials} denials -> {shown}\n"
        )
        if outcome.checkpoint is not None:
            taken, undo = outcome.checkpoint.id, outcome.checkpoint.undo
            sys.stdout.write(
                f"agentbox: checkpoint {taken} taken before first mutation \u2014 `{undo}` reverts this run\n"
            )
        sys.stdout.flush()
    except OSError:
        # The flush at exit must not complain again.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
