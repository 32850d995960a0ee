# SPDX-License-Identifier: MIT
"""The text of a policy as lines and segments: characters that may stand there, comments, commas, and what is a key."""

from __future__ import annotations

from agentbox.policy.patterns import Pattern
from agentbox.policy.record import dataclass
from agentbox.policy.rule import Place, Value, syntax_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

MAX_TEXT_CHARACTERS = 1 << 20

# Control characters but tab, marks that reorder or hide text, and halves of surrogate pairs: nowhere in a policy.
_FORBIDDEN = Pattern(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ud800-\udfff]"
)
# White space that looks like a space and is none: not in a rule.
_OTHER_SPACE = Pattern("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_BLANK = " \t"


@dataclass(frozen=True)
class Line:
    """One line: its segments (the texts between commas, without white space around them), none for a blank line."""

    segments: tuple[Value, ...]
    blank: bool


def decode(content: str | bytes, display: str) -> str:
    """The text of a file. Raises PolicySyntaxError for what is not UTF-8, too long, or begins with a mark."""
    if isinstance(content, bytes):
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            before = content[: error.start].decode("utf-8")
            place = Place(display, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)
            source = before.rpartition("\n")[2]
            raise syntax_error(
                "not_utf8", f"byte 0x{content[error.start]:02x} is not UTF-8", "save the file as UTF-8", place, source
            ) from None
    else:
        text = content
    if text.startswith("\ufeff"):
        place = Place(display)
        raise syntax_error(
            "byte_order_mark",
            "the file begins with a byte order mark",
            "save it as UTF-8 without BOM",
            place,
            text[:40],
        )
    if len(text) > MAX_TEXT_CHARACTERS:
        place = Place(display)
        raise syntax_error(
            "too_long", f"the policy has more than {MAX_TEXT_CHARACTERS} characters", "split it by include:", place, ""
        )
    return text


def lines(text: str, display: str) -> Iterator[Line]:
    """The lines of a policy, a bad character being an error of its line."""
    for number, source in enumerate(text.split("\n"), 1):
        yield _line(source[:-1] if source.endswith("\r") else source, Place(display, number))


def _line(source: str, place: Place) -> Line:
    # Of printable ASCII nothing is forbidden.
    plain = source.isascii() and source.replace("\t", "").isprintable()
    bad = None if plain else _FORBIDDEN.search(source)
    if bad is not None:
        raise _bad_character(bad, place, source)
    rule_part = _without_comment(source)
    space = None if plain else _OTHER_SPACE.search(rule_part)
    if space is not None:
        raise _bad_character(space, place, source)
    return Line(tuple(_segments(rule_part, place, source)), not rule_part.strip(_BLANK))


def _without_comment(source: str) -> str:
    at = source.find("#")
    while at > 0 and source[at - 1] not in _BLANK:
        at = source.find("#", at + 1)
    return source if at < 0 else source[:at]


def _segments(text: str, place: Place, source: str) -> Iterator[Value]:
    start = 0
    for part in text.split(","):
        stripped = part.strip(_BLANK)
        if stripped:
            column = start + len(part) - len(part.lstrip(_BLANK)) + 1
            yield Value(stripped, Place(place.path, place.line, column), source)
        start += len(part) + 1


def _bad_character(found: re.Match[str], place: Place, source: str) -> Exception:
    character = found.group()
    if character == "\r":
        problem, message, hint = "bare_cr", "a carriage return within a line", "end lines with LF or CRLF"
    else:
        problem, message = "bad_character", f"the character U+{ord(character):04X} may not stand here"
        hint = "remove it; in a path, `?` stands for any one character"
    return syntax_error(problem, message, hint, place, source, found.start() + 1)


def after(value: Value, offset: int) -> Value:
    """What stands after the first `offset` characters of a value, without the white space before it."""
    rest = value.text[offset:]
    stripped = rest.lstrip(_BLANK)
    column = value.place.column + offset + len(rest) - len(stripped)
    return Value(stripped, Place(value.place.path, value.place.line, column), value.source)


def first_word(value: Value) -> tuple[str, Value]:
    """The first word of a value and what stands after it."""
    word = value.text.replace("\t", " ").partition(" ")[0]
    return word, after(value, len(word))
