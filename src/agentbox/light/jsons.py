# SPDX-License-Identifier: MIT
"""JSON text by the C functions alone: the standard library's `json` imports `re` for its Python parts."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import dumps, loads
else:
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        class _Context:
            """What the scanner asks of a decoder."""

            strict = True
            object_hook = None
            object_pairs_hook = None
            parse_float = float
            parse_int = int

            @staticmethod
            def parse_constant(name):
                """NaN and its like are not JSON."""
                raise ValueError(f"{name} is not JSON")

        def _refuse(value):
            raise TypeError(f"{type(value).__name__} is not JSON serializable")

        _encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ": ", ", ", False, False, False)
        _scan = make_scanner(_Context)

        def dumps(value):
            """ASCII text of a value; refuses what is not JSON, numbers included."""
            return "".join(_encode(value, 0))

        def loads(text):
            """The value of a text without white space around it. Raises ValueError."""
            if isinstance(text, (bytes, bytearray)):
                text = text.decode()
            try:
                value, end = _scan(text, 0)
            except StopIteration as stop:
                raise ValueError(f"no JSON value at character {stop.value}") from None
            except SystemError:
                # The scanner has no words for an error before `json` is imported.
                raise ValueError("not JSON") from None
            if end != len(text):
                raise ValueError(f"more than one JSON value: {len(text) - end} further characters")
            return value

        if loads(dumps({"a": [1, 2.5, "é", None, True]})) != {"a": [1, 2.5, "é", None, True]}:
            raise ImportError("the C functions have changed")
    except (ImportError, TypeError):
        from json import dumps, loads


__all__ = ["dumps", "loads"]
