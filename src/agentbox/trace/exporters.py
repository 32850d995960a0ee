# SPDX-License-Identifier: MIT
"""Forms in which a trace can be given to other programs. An exporter is a function from records to pieces of text.

To add one: write it here, or in a module of its own when it is long, and enter it in EXPORTERS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

from agentbox.trace.record import Entry

# Characters that change what a terminal or an editor shows; JSON may spell any of them as an escape.
_MISLEADING = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]")


def jsonl(entries: Iterable[Entry]) -> Iterator[str]:
    """One JSON object a line, with a space after `:` and `,`, safe for a terminal."""
    for entry in entries:
        yield _MISLEADING.sub(_escaped, json.dumps(entry.fields, ensure_ascii=False)) + "\n"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


EXPORTERS: dict[str, Callable[[Iterable[Entry]], Iterator[str]]] = {"jsonl": jsonl}
