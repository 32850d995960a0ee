# SPDX-License-Identifier: MIT
"""How the text of a path in a policy becomes an absolute, resolved path with or without wildcards."""

from __future__ import annotations

from agentbox.policy.glob import is_pattern, tokens
from agentbox.policy.paths import DOUBLE_STAR, lexical
from agentbox.policy.patterns import Pattern
from agentbox.policy.rule import PathTarget

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.policy.rule import Surroundings, Value

_VARIABLE = Pattern(r"\$(?:\{|[A-Za-z_])")
_SCHEME = Pattern(r"[A-Za-z][A-Za-z0-9+.-]*://")


def path_target(value: Value, surroundings: Surroundings, max_bytes: int | None = None) -> PathTarget:
    """The target of a path as a policy file writes it. Raises PolicySyntaxError."""
    text = value.text
    absolute = _absolute(value, surroundings)
    parts = absolute.split("/")
    first = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts))
    literal = "/".join(parts[:first]) or "/"
    rest = [part for part in parts[first:] if part not in ("", ".")]
    for part in rest:
        if part == "..":
            value.fail("bad_glob", "'..' after a wildcard has no meaning", "write the directory that is meant")
        if "**" in part and part != "**":
            value.fail(
                "bad_glob",
                f"'**' must stand alone between slashes, not in '{part}'",
                "`**` is any number of directories, `*` any characters within one name",
                max(text.find("**"), 0),
            )
    while rest and rest[-1] == "**":
        del rest[-1]
    resolved = surroundings.resolve(single_slashes(literal))
    alias = ""
    if not rest:
        parent, _, name = lexical(literal).rpartition("/")
        named = f"{surroundings.resolve(parent or '/').rstrip('/')}/{name}"
        alias = named if name and named != resolved else ""
    return PathTarget(
        path=resolved,
        pattern=tuple(DOUBLE_STAR if part == "**" else tokens(part) for part in rest),
        pattern_text="/".join(rest),
        alias=alias,
        max_bytes=max_bytes,
    )


def single_slashes(path: str) -> str:
    """The path with at most one slash between parts; `..` stays, because a link may stand before it."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _absolute(value: Value, surroundings: Surroundings) -> str:
    text = value.text
    if text.startswith("~"):
        if text != "~" and not text.startswith("~/"):
            value.fail("bad_path", f"the home directory of another user, {text!r}", "write the path; only ~/ is known")
        if surroundings.home is None:
            value.fail("bad_path", "'~' has no meaning here: there is no home directory", "write an absolute path")
        return surroundings.home + text[1:]
    if text[:1] == "$" and _VARIABLE.match(text):
        value.fail("bad_path", "variables are not expanded", f"write ~ or the path; a file of that name is ./{text}")
    if "://" in text and _SCHEME.match(text):
        value.fail("bad_path", f"{text!r} is a URL, not a path", "write the path without the scheme")
    return text if text.startswith("/") else f"{surroundings.root}/{text}"
