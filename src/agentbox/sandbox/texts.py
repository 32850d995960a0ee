# SPDX-License-Identifier: MIT
"""Output as text: what came since an offset, never with a character cut in two, and shortened in its middle."""

from __future__ import annotations

import codecs

from agentbox.records import dataclass
from agentbox.sandbox.spool import Spool

# Characters of one result that a model is shown.
MAX_OUTPUT_BYTES = 30_000
_CHUNK = 1 << 18
_MOST_BYTES_OF_A_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What came: `text` with its middle left out where it was long, where the next one begins, and how many characters
    came in all. Bytes that the spool did not keep count as characters."""

    text: str
    end: int
    characters: int


def shortened(text: str, limit: int = MAX_OUTPUT_BYTES) -> str:
    """The text, or its first and last halves of `limit` characters with a line between that says how many are left
    out."""
    return text if len(text) <= limit else joined(text[: limit // 2], len(text), text[-(limit // 2) :])


def joined(first: str, characters: int, last: str) -> str:
    """Beginning and end of a text of so many characters, with the line between them."""
    return f"{first}\n... [{characters - len(first) - len(last)} characters truncated] ...\n{last}"


def excerpt(spool: Spool, begin: int, *, final: bool, limit: int = MAX_OUTPUT_BYTES) -> Excerpt:
    """What came since the byte `begin`, in memory that does not depend on how much. A character of which only a part
    has come is left for the next excerpt, unless this is the `final` one."""
    end = spool.total if final else _whole_characters(spool, begin)
    half = limit // 2
    first, last = "", ""
    counted = 0
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    at = begin
    while at < end:
        found_at, data = spool.read(at, min(_CHUNK, end - at))
        if not data:
            counted += end - at
            break
        # What is lost is counted by its bytes.
        counted += found_at - at
        at = found_at + len(data)
        text = decoder.decode(data, final=at >= end)
        counted += len(text)
        if len(first) < half:
            taken = half - len(first)
            first, text = first + text[:taken], text[taken:]
        last += text
        if len(last) > 2 * (limit - half) + _CHUNK:
            last = last[-(limit - half) :]
    if counted <= len(first) + len(last) and counted <= limit:
        return Excerpt(first + last, end, counted)
    return Excerpt(joined(first, counted, last[-(limit - half) :]), end, counted)


def _whole_characters(spool: Spool, begin: int) -> int:
    """Where the last complete character ends."""
    at, data = spool.read(max(begin, spool.total - _MOST_BYTES_OF_A_CHARACTER), _MOST_BYTES_OF_A_CHARACTER)
    for back in range(1, len(data) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return at + len(data) - (back if needed > back else 0)
    return at + len(data)
