# SPDX-License-Identifier: MIT
"""Traces of agentbox-runtime 0.3, which have no `v`: verified by the rules they were written under.

Their chain has no key, so whoever computes the hashes anew, or cuts the end off, is not seen; the verdict says so. The
spelling of a line does not count there (white space, order of keys, blank lines), but a key that stands twice is
refused, because two readers would see two traces.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, BinaryIO

from agentbox.trace import record
from agentbox.trace.lines import LineTooLongError, lines
from agentbox.trace.verdict import Status, Trust, Verdict

CANNOT_PROMISE = (
    "the old form has no signature: a cut end and a chain that was hashed anew look the same as a trace that is whole"
)


def verify(file: BinaryIO, path: str | os.PathLike[str], trust: Trust) -> Verdict:
    """The verdict under the old rules; `file` stands at its start, `path` is where it was found."""
    run = _own_run(path, trust)
    if run or trust.explicit:
        detail = f"run {run} was signed when it was written, this is not" if run else "it has the old form, unsigned"
        return Verdict(Status.REHASHED if run else Status.WRONG_KEY, 0, detail, index=0, version=1, run=run)
    head = record.GENESIS
    count = 0
    ended = False
    try:
        for line, complete in lines(file):
            if not line.strip():
                continue
            entry = _consistent(line)
            if entry is None and not complete:
                return Verdict(Status.TORN, count, f"the last line, entry {count}, has no end", count, version=1)
            if entry is None:
                return Verdict(Status.EDITED, count, "its hash is not that of its content", count, version=1)
            if entry["prev"] != head or entry["i"] != count:
                return Verdict(Status.EDITED, count, "it does not continue the entry before it", count, version=1)
            head = entry["sha"]
            ended = entry.get("op") == record.RUN_END
            count += 1
    except LineTooLongError:
        return Verdict(Status.EDITED, count, "the line is longer than any that is written", count, version=1)
    end = "" if ended else "; it has no run.end, so it was cut or its run was killed"
    return Verdict(Status.OK, count, CANNOT_PROMISE + end, version=1)


def _own_run(path: str | os.PathLike[str], trust: Trust) -> str:
    """The run whose signed trace must be in this place, so that one without a signature was put there instead."""
    name = os.path.basename(os.path.dirname(os.path.realpath(path)))
    return name if trust.ledger and name and trust.ledger.find(name) else ""


def _consistent(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
        body = {name: value for name, value in entry.items() if name != "sha"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        sha = hashlib.sha256((entry["prev"] + text).encode("utf-8")).hexdigest()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return entry if entry.get("sha") == sha and type(entry.get("i")) is int else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found
