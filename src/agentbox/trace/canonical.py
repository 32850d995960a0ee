# SPDX-License-Identifier: MIT
"""RFC 8785: the one spelling of a JSON value, so that its hash is the same whoever computes it.

Standard library only and clean for Python 3.9, because code inside a box uses it too. Numbers are IEEE doubles and are
written as ECMAScript writes them; keys are sorted by UTF-16 code units; strings are never normalised.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json.encoder import encode_basestring
    from typing import Any

    make_encoder: Any
    make_scanner: Any
else:
    try:
        # The compiled parts alone: what surrounds them imports `re`, and this is imported before every command.
        from _json import encode_basestring, make_encoder, make_scanner
    except ImportError:
        from json.encoder import encode_basestring

        make_encoder = make_scanner = None

MAX_DEPTH = 64
_SAFE_INTEGER = (1 << 53) - 1
# Every integer of so many characters is safe.
_SHORT_INTEGER_DIGITS = 15
# ECMAScript writes a number without exponent while its decimal point lies within these places.
_FIRST_PLACE, _LAST_PLACE = -5, 21

_PLAIN = frozenset({str, bool, type(None)})
_PLAIN_HOLDERS = _PLAIN | {int, list}

# A string as JSON text.
quoted = encode_basestring


class NotCanonicalError(ValueError):
    """The value has no canonical form; `reason` is one of the words of spec/trace/README.md."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def dumps(value: Any) -> str:
    """The canonical text of a value made of dict, list, tuple, str, int, float, bool and None.

    Raises NotCanonicalError: `number` (not finite, or an integer that is no double), `surrogate` (half a character),
    `key` (not a string), `depth` (more than 64 levels), `type`.
    """
    if _encode_plain is not None and type(value) is dict and _is_plain(value):
        text = "".join(_encode_plain(value, 0))
    else:
        parts: list[str] = []
        _write(value, parts.append, 0)
        text = "".join(parts)
    # Only strings can hold half a character, and a text without one is encodable; this is the cheapest way to ask.
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise NotCanonicalError("surrogate") from error
    return text


def number(value: float) -> str:
    """How ECMAScript writes a double. Raises NotCanonicalError for NaN and the infinities."""
    if value == 0:
        return "0"
    text = repr(value)
    if "e" not in text:
        if text.endswith(".0"):
            return text[:-2]
        if "n" in text:
            raise NotCanonicalError("number", text)
        return text
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    digits = mantissa.replace(".", "")
    place = int(exponent) + 1  # of the decimal point, counted from before the first digit
    if _FIRST_PLACE <= place <= 0:
        return f"{sign}0.{'0' * -place}{digits}"
    if 0 < place <= _LAST_PLACE:
        return f"{sign}{digits.ljust(place, '0')}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'+' if place > 0 else '-'}{abs(place - 1)}"


def integer(value: int) -> str:
    """An integer that is a double. Raises NotCanonicalError for one that is not."""
    if -_SAFE_INTEGER <= value <= _SAFE_INTEGER:
        return str(value)
    try:
        double = float(value)
    except OverflowError as error:
        raise NotCanonicalError("number", "integer beyond the doubles") from error
    if int(double) != value:
        raise NotCanonicalError("number", "integer is no double")
    return number(double)


def sorted_keys(mapping: dict[str, Any]) -> list[str]:
    """The keys in the order of their UTF-16 code units. Raises NotCanonicalError for a key that is no string."""
    try:
        if "".join(mapping).isascii():
            return sorted(mapping)
        return sorted(mapping, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
    except (TypeError, AttributeError) as error:
        raise NotCanonicalError("key") from error


def _is_plain(mapping: dict[str, Any]) -> bool:
    """Whether it is what most records hold: names with texts, true, false, null, short integers, and lists of texts.
    Then the standard library's encoder, which is compiled, writes it as this module would."""
    try:
        if not "".join(mapping).isascii():
            return False
    except TypeError:
        return False
    kinds = set(map(type, mapping.values()))
    if kinds <= _PLAIN:
        return True
    if not kinds <= _PLAIN_HOLDERS:
        return False
    for item in mapping.values():
        kind = type(item)
        if kind is int and not -_SAFE_INTEGER <= item <= _SAFE_INTEGER:
            return False
        if kind is list and item and set(map(type, item)) != {str}:
            return False
    return True


def _make_encoder() -> Any:
    return (
        None
        if make_encoder is None
        else make_encoder(None, None, encode_basestring, None, ":", ",", True, False, False)
    )


_encode_plain = _make_encoder()


def _write(value: Any, put: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        put(encode_basestring(value))
    elif kind is dict:
        _write_object(value, put, depth)
    elif value is None:
        put("null")
    elif kind is bool:
        put("true" if value else "false")
    elif kind is int:
        put(integer(value))
    elif kind is float:
        put(number(value))
    elif kind is list or kind is tuple:
        _write_array(value, put, depth)
    else:
        raise NotCanonicalError("type", kind.__name__)


def _write_object(value: dict[str, Any], put: Any, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise NotCanonicalError("depth")
    before = "{"
    for key in sorted_keys(value):
        item = value[key]
        if type(item) is str:
            put(f"{before}{encode_basestring(key)}:{encode_basestring(item)}")
        else:
            put(f"{before}{encode_basestring(key)}:")
            _write(item, put, depth + 1)
        before = ","
    put("{}" if before == "{" else "}")


def _write_array(value: Any, put: Any, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise NotCanonicalError("depth")
    before = "["
    for item in value:
        put(before)
        _write(item, put, depth + 1)
        before = ","
    put("[]" if before == "[" else "]")


def loads(text: bytes) -> Any:
    """The value of a JSON text, refusing what two readers could understand differently.

    A long integer is read as the double that JSON says it is. Raises NotCanonicalError: `encoding`, `json`,
    `duplicate` (a key twice), `number` (NaN, Infinity), `depth`.
    """
    if _scan is not None:
        try:
            whole = text.decode("utf-8")
            value, end = _scan(whole, 0)
            if end == len(whole) or not whole[end:].strip(" \t\r\n"):
                return value
        except (StopIteration, ValueError, RecursionError, SystemError):
            # What is wrong is said below. (SystemError: the compiled scanner cannot say it before `json` is imported.)
            pass
    import json

    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=_unique, parse_int=_integer, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise NotCanonicalError("encoding") from error
    except RecursionError as error:
        raise NotCanonicalError("depth") from error
    except NotCanonicalError:
        raise
    except ValueError as error:
        raise NotCanonicalError("json", str(error)) from error


def is_canonical(text: bytes, value: Any) -> bool:
    """Whether `text` is exactly the canonical form of `value`, which was read from it."""
    try:
        return dumps(value).encode("utf-8") == text
    except NotCanonicalError:
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotCanonicalError("duplicate")
    return found


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _SHORT_INTEGER_DIGITS else float(digits)


def _no_constant(word: str) -> Any:
    raise NotCanonicalError("number", word)


class _Scanning:
    """What the compiled scanner asks of a decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_unique)
    parse_float = float
    parse_int = staticmethod(_integer)
    parse_constant = staticmethod(_no_constant)
    memo: dict[str, str] = {}  # noqa: RUF012


_scan = None if make_scanner is None else make_scanner(_Scanning())
