# SPDX-License-Identifier: MIT
"""Regular expressions that are compiled when they are first needed: most rules need none, and `re` alone takes as long
to import as half an interpreter."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re


class Pattern:
    """The expression `text`; `ignoring_case` is about ASCII letters."""

    def __init__(self, text: str, *, ignoring_case: bool = False) -> None:
        self._text = text
        self._ignoring_case = ignoring_case
        self._made: re.Pattern[str] | None = None

    def match(self, text: str) -> re.Match[str] | None:
        """See `re.Pattern.match`."""
        return self._compiled().match(text)

    def search(self, text: str) -> re.Match[str] | None:
        """See `re.Pattern.search`."""
        return self._compiled().search(text)

    def _compiled(self) -> re.Pattern[str]:
        if self._made is None:
            import re

            self._made = re.compile(self._text, re.IGNORECASE | re.ASCII if self._ignoring_case else 0)
        return self._made
