# SPDX-License-Identifier: MIT
"""Is this file what the writer wrote, all of it?

Two passes. The first only hashes: bytes that a trusted signature covers are the writer's own, so nothing in them needs
to be parsed or compared. It stops at the first thing that is not as it must be, or at the end. Only when the file is
not whole, the second (diagnosis.py) parses what follows the last good signature and says what happened.
Memory does not grow with the file.
"""

from __future__ import annotations

from binascii import Error, hexlify, unhexlify

from agentbox.light import digests
from agentbox.trace import record
from agentbox.trace.anchor import Anchor
from agentbox.trace.canonical import NotCanonicalError, is_canonical
from agentbox.trace.lines import LineTooLongError, lines, opened, texts
from agentbox.trace.merkle import MerkleTree
from agentbox.trace.record import Entry
from agentbox.trace.signature import claim_of, is_signed_by
from agentbox.trace.verdict import Status, Trust, Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

# From so many bytes on, loading the faster hash function pays.
_LARGE_BYTES = 1 << 20
_SHA = b'"sha":"'
_BEFORE_DIGITS = b"," + _SHA
_QUOTED_DIGITS = 65
# The end of every line that the writer makes, but for the digits of its time and version.
_END = b',"ts":,"v":}\n'
_NUMBER = b"0123456789."
# Arguments come first in a line and `count` first in those of a signature.
_SIGNED_START = b'{"args":{"count":'
_SEAL_OP = b'"op":"' + record.SEAL.encode() + b'"'
# More than any seal takes.
_SEAL_BYTES = 4096


def verify(path: str | Path, trust: Trust) -> Verdict:
    """The verdict on a trace of either form. Raises TraceError only when the file cannot be read."""
    with opened(path) as file:
        first = _first_line(file)
        if isinstance(first, Verdict):
            return first
        if file.seek(0, 2) > _LARGE_BYTES:
            digests.use_the_fastest()
        file.seek(0)
        if first.version == 1:
            from agentbox.trace import old

            return old.verify(file, path, trust)
        anchor = _signed_part(file, first, trust)
        if anchor.sealed and anchor.offset == file.seek(0, 2):
            return _whole(anchor, trust)
        file.seek(anchor.offset)
        from agentbox.trace.diagnosis import Diagnosis

        return Diagnosis(anchor, trust).run(file)


def _first_line(file: BinaryIO) -> Entry | Verdict:
    """The first record, or a stand-in of the right form when it was damaged, or the verdict that this is no trace."""
    damaged = 0
    shaped = False
    try:
        for line, _ in lines(file):
            try:
                entry = record.parse(line)
            except NotCanonicalError:
                shaped = shaped or line.startswith(b'{"args":{')
                damaged += 1
                if damaged > 1:
                    break
            else:
                return entry
    except LineTooLongError:
        pass
    if shaped:
        return Entry(0, 0.0, "meta", "", {}, None, record.GENESIS, record.GENESIS)
    detail = "it is empty" if damaged == 0 else "its first lines are no records"
    return Verdict(Status.NOT_A_TRACE, 0, detail)


def _signed_part(file: BinaryIO, first: Entry, trust: Trust) -> Anchor:
    """How far from the start trusted signatures reach. `file` stands at its start."""
    if first.op != record.RUN_START or not trust.keys:
        return Anchor(run=str(first.args.get("run") or ""))
    # A signature covers everything before it, so the last good one is enough; mostly that is the seal in the last line.
    if _ends_in_seal(file):
        scan = _Scan(first, trust, check_each=False, seals_only=True)
        if scan.run(file) and scan.last_is_good():
            return scan.anchor
        file.seek(0)
    scan = _Scan(first, trust, check_each=False)
    if scan.run(file) and not scan.last_is_good():
        file.seek(0)
        scan = _Scan(first, trust, check_each=True)
        scan.run(file)
    return scan.anchor


class _Scan:
    """Hashes from the start of a file for as long as everything fits; `anchor` is the last signature that fitted."""

    def __init__(self, first: Entry, trust: Trust, *, check_each: bool, seals_only: bool = False) -> None:
        self._trust = trust
        self._run = first.args.get("run")
        self._policy = first.args.get("policy_sha256")
        self._check_each = check_each
        self._seals_only = seals_only
        self._tree = MerkleTree()
        self._head = record.GENESIS.encode()
        self._count = self._offset = 0
        self._signed: Entry | None = None
        self._signed_line = b""
        self.anchor = Anchor(run=str(self._run or ""))

    def run(self, file: BinaryIO) -> bool:
        """Go as far as possible; whether a signature was met."""
        try:
            for text, ended in texts(file):
                if not ended or not self._pass(text):
                    break
        except LineTooLongError:
            pass
        return self._signed is not None

    def _pass(self, text: bytes) -> bool:
        """Go over some lines; whether to go on."""
        begin = 0
        for at in _signed_places(text):
            end = text.index(b"\n", at)
            line = text[at:end]
            if self._seals_only and _SEAL_OP not in line:
                continue
            if entry := _signed_entry(line):
                if not (self._chain(text[begin:at]) and self._accept(entry, line) and self._chain(text[at : end + 1])):
                    return False
                self._move_anchor(entry)
                if self.anchor.sealed:
                    return False
                begin = end + 1
        return self._chain(text[begin:])

    def _chain(self, text: bytes) -> bool:
        """Whether each of the lines continues the one before; then they count."""
        return not text or self._chain_as_written(text) or self._chain_by_commas(text)

    def _chain_as_written(self, text: bytes) -> bool:
        """As `_chain_by_commas` with fewer steps for each line, where all lines end as the writer makes them: true only
        for what is true there too."""
        first, *parts = text.split(_BEFORE_DIGITS)
        count = len(parts)
        # Of each line what follows the name of its hash, and what the next line has before that.
        cut = [part.partition(b"\n") for part in parts]
        quoted = b"".join([end[:_QUOTED_DIGITS] for end, _, _ in cut])
        ends = [end[_QUOTED_DIGITS:] for end, _, _ in cut]
        begins = [first, *[begin for _, _, begin in cut]]
        # (1) In each line the hash is before the third comma from its end.
        joined = b"\n".join(ends) + b"\n"
        if joined.translate(None, _NUMBER) != _END * count or (b"\n" + joined).count(b"\n,") != count:
            return False
        # (2) Each part holds the end of one line, and nothing follows the last one.
        if b"".join([newline for _, newline, _ in cut]) != b"\n" * count or b"\n" in b"".join(begins) or begins.pop():
            return False
        # (3) What they state are lower-case digits between quotes.
        heads = quoted.split(b'"')
        if quoted[_QUOTED_DIGITS - 1 :: _QUOTED_DIGITS] != b'"' * count or len(heads) != count + 1 or heads.pop():
            return False
        sha256, digits, befores = digests.sha256, b"".join(heads), [self._head, *heads]
        last = befores.pop()
        found = [sha256(head + begin + end).digest() for head, begin, end in zip(befores, begins, ends, strict=True)]
        try:
            if unhexlify(digits) != b"".join(found) or digits != digits.lower():
                return False
        except Error:
            return False
        self._count_in(found, last, len(text))
        return True

    def _chain_by_commas(self, text: bytes) -> bool:
        sha256, join = digests.sha256, b",".join
        head = self._head
        found, stated = [], []
        try:
            for line in text[:-1].split(b"\n"):
                # (1) `sha` stands before `ts` and `v`, and none of them holds a comma: its place is known without
                # parsing, and a line that has it elsewhere is another line.
                before, sha, ts, version = line.rsplit(b",", 3)
                # (2) The hash is over the line as it stands, without `sha`.
                found.append(sha256(join((head + before, ts, version))).digest())
                stated.append(sha)
                head = sha[len(_SHA) : -1]
        except ValueError:
            return False
        # (3) All hashes are those that the lines state. No `sha` of (1) holds a comma, so what is equal when it is
        # joined by commas is equal one by one.
        digits = hexlify(b"".join(found), "|", -32).replace(b"|", b'",' + _SHA)
        if join(stated) != _SHA + digits + b'"':
            return False
        self._count_in(found, head, len(text))
        return True

    def _count_in(self, hashes: list[bytes], head: bytes, size: int) -> None:
        self._tree.extend(hashes)
        self._head = head
        self._count += len(hashes)
        self._offset += size

    def last_is_good(self) -> bool:
        """Whether the signature at the anchor was made with a trusted key, over the very bytes that stand there."""
        if self._signed is None:
            return False
        key = self._trust.key(self._signed.args["key"])
        fields = self._signed.fields
        return key is not None and is_canonical(self._signed_line, fields) and is_signed_by(fields, key)

    def _accept(self, entry: Entry, line: bytes) -> bool:
        """Whether a checkpoint speaks about exactly what stands before it."""
        claim = claim_of(entry.args)
        if (
            claim is None
            or self._trust.key(claim.key) is None
            or (claim.run, claim.policy_sha256) != (self._run, self._policy)
            or (entry.i, claim.count, claim.head) != (self._count, self._count, self._head.decode())
            or claim.root != self._tree.root()
        ):
            return False
        former = self._signed, self._signed_line
        self._signed, self._signed_line = entry, line
        if self._check_each and not self.last_is_good():
            self._signed, self._signed_line = former
            return False
        return True

    def _move_anchor(self, entry: Entry) -> None:
        self.anchor = Anchor(
            run=str(self._run),
            policy_sha256=str(self._policy),
            key=entry.args["key"],
            offset=self._offset,
            count=self._count,
            head=entry.sha,
            tree=self._tree.copy(),
            sealed=entry.op == record.SEAL,
        )


def _ends_in_seal(file: BinaryIO) -> bool:
    """Whether the last line looks like a seal. Leaves `file` at its start."""
    file.seek(max(0, file.seek(0, 2) - _SEAL_BYTES))
    *_, line, rest = b"", *file.read(_SEAL_BYTES).split(b"\n")
    file.seek(0)
    return not rest and line.startswith(_SIGNED_START) and _SEAL_OP in line


def _signed_places(text: bytes) -> list[int]:
    """Where lines begin that may be checkpoints or seals."""
    found = [0] if text.startswith(_SIGNED_START) else []
    at = text.find(b"\n" + _SIGNED_START)
    while at >= 0:
        found.append(at + 1)
        at = text.find(b"\n" + _SIGNED_START, at + 1)
    return found


def _signed_entry(line: bytes) -> Entry | None:
    """The line as a checkpoint or seal; None for any other record, whatever a guest wrote into it."""
    try:
        entry = record.parse(line)
    except NotCanonicalError:
        return None
    is_signed = entry.kind == "meta" and entry.op in (record.CHECKPOINT, record.SEAL)
    return entry if is_signed else None


def _whole(anchor: Anchor, trust: Trust) -> Verdict:
    standing = trust.ledger.find(anchor.run) if trust.ledger else None
    if standing and standing.sealed and (standing.count, standing.head) != (anchor.count, anchor.head):
        return Verdict(
            Status.REHASHED,
            anchor.count,
            f"the ledger knows another end of this run: {standing.count} entries, head {standing.head[:16]}",
            index=min(anchor.count, standing.count) - 1,
            signed_count=anchor.count,
            sealed=True,
            run=anchor.run,
            key=anchor.key,
        )
    return Verdict(Status.OK, anchor.count, signed_count=anchor.count, sealed=True, run=anchor.run, key=anchor.key)
