# SPDX-License-Identifier: MIT
"""`agentbox verify` from its words to its exit code, importing as little as it can: of a short trace, the imports are
what takes the time. What is misspelled, and help, are verify.py's, which uses click."""

from __future__ import annotations

import sys

from agentbox.cli.console import errors_are_lines, load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbox.trace.verdict import Trust, Verdict

DEFAULT_TRACE = "trace.jsonl"


class Options:
    """What `agentbox verify` was told."""

    def __init__(self, trace: str = DEFAULT_TRACE, key: str | None = None, *, as_json: bool = False) -> None:
        self.trace = trace
        self.key = key
        self.as_json = as_json


def read_words(words: Sequence[str]) -> Options | None:
    """The options of `verify`, or None for what only the whole parser can read or explain."""
    options = Options()
    named = ""
    waiting = list(reversed(words))
    while waiting:
        word = waiting.pop()
        if word == "--json":
            options.as_json = True
        elif word in ("-t", "--trace", "--key"):
            if not waiting or not waiting[-1] or waiting[-1].startswith("-"):
                return None
            value = waiting.pop()
            if word == "--key":
                options.key = value
            elif named:
                return None
            else:
                named = value
        elif not word or word.startswith("-") or named:
            return None
        else:
            named = word
    options.trace = named or DEFAULT_TRACE
    return options


def check_quietly(options: Options) -> tuple[int, list[str]]:
    """Judge the trace: the exit code and what `check` prints. Raises TraceError."""
    from agentbox.cli import exit_codes
    from agentbox.trace.verify import verify

    verdict = verify(options.trace, _trust(options.key))
    return exit_codes.for_verdict(verdict.status), _lines(verdict)


def check(options: Options) -> int:
    """Judge the trace and print the verdict; the exit code."""
    with errors_are_lines():
        from agentbox.cli import exit_codes
        from agentbox.trace.verify import verify

        verdict = verify(options.trace, _trust(options.key))
        if options.as_json:
            import json

            from agentbox.records import asdict

            shown = json.dumps({**asdict(verdict), "ok": verdict.ok, "tampered": verdict.tampered})
        else:
            shown = "\n".join(_lines(verdict))
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()
        return exit_codes.for_verdict(verdict.status)


def _trust(key: str | None) -> Trust:
    """The key file that was named, else the user's own keys; always the user's own ledger."""
    from agentbox.trace.keys import KeyStore, read_public_key
    from agentbox.trace.ledger import Ledger
    from agentbox.trace.verdict import Trust

    store = KeyStore(load_settings().trace_key_dir())
    ledger = Ledger(store.ledger)
    if key is not None:
        return Trust((read_public_key(key),), ledger, explicit=True)
    return Trust(store.trusted(), ledger)


def _lines(verdict: Verdict) -> list[str]:
    from agentbox.trace.verdict import Status

    match verdict.status:
        case Status.OK:
            first = f"agentbox: trace ok — {verdict.count} entries, hash chain verified"
            return [first, f"  sealed, signed with key {verdict.key}" if verdict.sealed else f"  {verdict.detail}"]
        case Status.UNSEALED | Status.TORN:
            state = "no end" if verdict.status is Status.UNSEALED else "torn last line"
            return [
                f"agentbox: INCOMPLETE — {state} after {verdict.count} entries, hash chain verified so far",
                f"  {verdict.detail}",
                f"  signed: {verdict.signed_count} of {verdict.count} entries",
            ]
        case Status.WRONG_KEY:
            return ["agentbox: NOT TRUSTED — no signature of a key that is trusted here", f"  {verdict.detail}"]
        case Status.NOT_A_TRACE:
            return [f"agentbox: not a trace — {verdict.detail}"]
        case Status.TRUNCATED:
            return [f"agentbox: TAMPERED — truncated after entry {verdict.count - 1}", f"  {verdict.detail}"]
        case Status.REHASHED:
            return [
                f"agentbox: TAMPERED — rewritten: the hash chain was computed anew, from entry {verdict.index} on",
                f"  {verdict.detail}",
            ]
        case word:
            return [
                f"agentbox: TAMPERED — hash chain breaks at entry {verdict.index}",
                f"  {word}: {verdict.detail}",
            ]
