# SPDX-License-Identifier: MIT
"""What happened to a trace that is not whole: every line after the last good signature is parsed and compared.

A record is *consistent* when it is canonical, has the fields of a record and carries the hash of its own bytes. An
editor who does not compute hashes leaves an inconsistent record; who moves, removes or copies lines leaves consistent
ones in wrong places; who computes every hash anew leaves a signature that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from agentbox.records import dataclass
from agentbox.trace import record
from agentbox.trace.anchor import Anchor
from agentbox.trace.canonical import NotCanonicalError, is_canonical
from agentbox.trace.ledger import Standing
from agentbox.trace.lines import LineTooLongError, lines
from agentbox.trace.record import Entry, body_hash
from agentbox.trace.signature import claim_of, is_signed_by
from agentbox.trace.verdict import Status, Trust, Verdict


@dataclass(frozen=True, slots=True)
class _Line:
    """A line, the record in it if it is consistent, else why not; `ended` is False for a last line without its end."""

    entry: Entry | None
    reason: str
    ended: bool


class Diagnosis:
    """One pass over the rest of a file."""

    def __init__(self, anchor: Anchor, trust: Trust) -> None:
        self._anchor = anchor
        self._trust = trust
        self._run = anchor.run
        self._policy = anchor.policy_sha256
        self._count = anchor.count
        self._head = anchor.head
        self._former_head = ""
        self._tree = anchor.tree
        self._sealed = anchor.sealed
        self._foreign_key = ""
        self._standing: Standing | None = None

    def run(self, file: BinaryIO) -> Verdict:
        """The verdict on what follows the anchor; `file` stands there."""
        self._standing = self._trust.ledger.find(self._run) if self._trust.ledger and self._run else None
        rest = _consistent_lines(file)
        for line, following in pairwise(_with_end(rest)):
            assert line is not None
            entry = line.entry
            if not line.ended:
                return self._torn()
            if self._sealed:
                return self._verdict(Status.INSERTED, "there are lines after the seal", self._count)
            if entry is None or entry.i != self._count or entry.prev != self._head:
                return self._break(line, following, rest)
            wrong = self._signature_problem(entry) or self._header_problem(entry) or self._ledger_problem(entry)
            if wrong:
                return self._verdict(Status.REHASHED, wrong, self._anchor.count)
            self._count += 1
            self._former_head, self._head = self._head, entry.sha
            self._tree.append(bytes.fromhex(entry.sha))
        return self._end()

    def _header_problem(self, entry: Entry) -> str:
        if self._count or self._run != entry.args.get("run"):
            return "" if self._count else "the first entry names no run"
        self._policy = str(entry.args.get("policy_sha256"))
        return "" if entry.op == record.RUN_START else "the first entry does not start a run"

    def _ledger_problem(self, entry: Entry) -> str:
        standing = self._standing
        if standing and entry.i == standing.count - 1 and entry.sha != standing.head:
            return f"the ledger knows another entry {entry.i} of this run"
        return ""

    def _signature_problem(self, entry: Entry) -> str:
        if entry.kind != "meta" or entry.op not in (record.CHECKPOINT, record.SEAL):
            return ""
        claim = claim_of(entry.args)
        if claim is None:
            return f"the signature of entry {entry.i} is malformed"
        key = self._trust.key(claim.key)
        self._sealed = entry.op == record.SEAL
        if (claim.count, claim.head, claim.root) != (self._count, self._head, self._tree.root()):
            return f"entry {entry.i} signs other entries than those before it"
        if (claim.run, claim.policy_sha256) != (self._run, self._policy):
            return f"entry {entry.i} signs another run"
        if key is None:
            self._foreign_key = claim.key
        elif not is_signed_by(entry.fields, key):
            return f"the signature of entry {entry.i} was not made over the entries before it"
        return ""

    def _break(self, line: _Line, following: _Line | None, rest: Iterator[_Line]) -> Verdict:
        """The chain does not go on at this line."""
        at = self._count
        follows = following.entry if following else None
        takes_place = follows is not None and follows.i == at and follows.prev == self._head
        entry = line.entry
        if takes_place and (entry is None or entry.i <= at):
            return self._verdict(Status.INSERTED, "the entry after this line is the one that belongs here", at)
        if entry is None:
            return self._verdict(Status.EDITED, line.reason, at)
        if entry.i > at:
            if takes_place or any(later.entry and later.entry.i == at for later in rest):
                return self._verdict(Status.REORDERED, f"entry {entry.i} stands where entry {at} belongs", at)
            missing = f"entry {at} is" if entry.i == at + 1 else f"entries {at} to {entry.i - 1} are"
            return self._verdict(Status.DELETED, f"{missing} missing", at)
        if (entry.i, entry.prev) == (at - 1, self._former_head) and entry.sha != self._head:
            return self._verdict(Status.INSERTED, f"two lines say that they are entry {entry.i}", entry.i)
        if entry.i < at:
            return self._verdict(Status.INSERTED, f"a line that says it is entry {entry.i}", at)
        if at > self._anchor.count and follows is not None and follows.prev == entry.sha:
            # The entries after this one confirm it, so the one before is not the one it was written after.
            return self._verdict(Status.EDITED, f"entry {at} was written after another entry {at - 1}", at - 1)
        return self._verdict(Status.EDITED, "it does not continue the entry before it", at)

    def _torn(self) -> Verdict:
        torn = f"the last line, entry {self._count}, has no end"
        missing = self._missing()
        if missing and self._standing and self._standing.count > self._count + 1:
            return self._verdict(Status.TRUNCATED, f"{torn}, and {missing}", self._count)
        if self._sealed:
            return self._verdict(Status.INSERTED, "there is something after the seal", self._count)
        return self._verdict(Status.TORN, f"{torn}; {missing}" if missing else torn, self._count)

    def _end(self) -> Verdict:
        missing = self._missing()
        if missing and not self._sealed:
            return self._verdict(Status.TRUNCATED, missing, self._count)
        if self._foreign_key or not self._trust.keys:
            return self._foreign()
        after = f"the last {self._count - self._anchor.count} entries are not signed"
        known = "" if self._standing else "; this user's ledger does not know the run, so a cut end would look the same"
        return self._verdict(Status.UNSEALED, f"it has no end: the run was killed, or still runs; {after}{known}")

    def _missing(self) -> str:
        standing = self._standing
        if standing is None or standing.count <= self._count:
            return ""
        known = "sealed" if standing.sealed else "recorded"
        return f"the ledger says that {standing.count} entries were {known}, {self._count} are left"

    def _foreign(self) -> Verdict:
        if not self._trust.keys:
            detail = "no key is trusted here: give --key FILE"
        else:
            detail = f"signed with the key {self._foreign_key}, which is not trusted"
        if self._standing and self._standing.sealed:
            return self._verdict(Status.REHASHED, f"this user's run, but {detail}", 0)
        return self._verdict(Status.WRONG_KEY, detail)

    def _verdict(self, status: Status, detail: str, index: int | None = None) -> Verdict:
        return Verdict(
            status,
            self._count,
            detail,
            index=index,
            signed_count=self._anchor.count,
            sealed=self._sealed,
            run=self._run,
            key=self._anchor.key or self._foreign_key,
        )


def _consistent_lines(file: BinaryIO) -> Iterator[_Line]:
    try:
        for line, ended in lines(file):
            yield _consistent(line, ended)
    except LineTooLongError:
        yield _Line(None, "the line is longer than any that is written", True)


def _consistent(line: bytes, ended: bool) -> _Line:
    if len(line) > record.MAX_LINE_BYTES:
        return _Line(None, "the line is longer than any that is written", ended)
    try:
        entry = record.parse(line)
        if entry.version != record.VERSION:
            return _Line(None, "it has the old form", ended)
        if not is_canonical(line, entry.fields):
            return _Line(None, "it is not spelled as it was written", ended)
        if body_hash(entry.prev, entry.fields) != entry.sha:
            return _Line(None, "its hash is not that of its content", ended)
    except NotCanonicalError as error:
        return _Line(None, f"it cannot be read ({error})", ended)
    return _Line(entry, "", ended)


def _with_end(found: Iterator[_Line]) -> Iterator[_Line | None]:
    yield from found
    yield None
