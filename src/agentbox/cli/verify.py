# SPDX-License-Identifier: MIT
"""`agentbox verify`: whether a trace is what was written, all of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, load_settings
from agentbox.cli.show import chosen_trace
from agentbox.records import asdict

if TYPE_CHECKING:
    from agentbox.trace.verdict import Trust, Verdict


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("-t", "--trace", type=click.Path(path_type=Path), help="The trace; default trace.jsonl.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="Trust this public key instead of your own (`agentbox key export`)."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def verify(file: Path | None, trace: Path | None, key: Path | None, as_json: bool) -> None:
    """Check that a trace is whole and that nothing in it was changed."""
    from agentbox.trace.verify import verify as judge

    path = chosen_trace(file, trace)
    with errors_are_lines():
        verdict = judge(path, _trust(key))
    if as_json:
        click.echo(json.dumps({**asdict(verdict), "ok": verdict.ok, "tampered": verdict.tampered}))
    else:
        for line in _lines(verdict):
            click.echo(line)
    sys.exit(exit_codes.for_verdict(verdict.status))


def _trust(key: Path | None) -> Trust:
    """The key file that was named, else the user's own keys; always the user's own ledger."""
    from agentbox.trace.keys import KeyStore, read_public_key
    from agentbox.trace.ledger import Ledger
    from agentbox.trace.verdict import Trust

    store = KeyStore(load_settings().trace_key_dir())
    ledger = Ledger(store.ledger_path)
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
