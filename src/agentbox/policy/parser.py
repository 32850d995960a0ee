# SPDX-License-Identifier: MIT
"""Text of a policy in, Policy out; every fault is a PolicySyntaxError with line, column and what to write instead.

Pure: how a path is resolved, where a program is, and what an included file says are functions that the caller gives.
The grammar is `spec/policy/policy.ebnf`.
"""

from __future__ import annotations

from agentbox.policy.document import Policy
from agentbox.policy.glob import is_pattern
from agentbox.policy.paths import lexical
from agentbox.policy.patterns import Pattern
from agentbox.policy.rule import Surroundings
from agentbox.policy.rules import RULES
from agentbox.policy.text import after, decode, first_word, lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentbox.policy.rule import Rule, Value

MAX_INCLUDE_DEPTH = 8
MAX_INCLUDED_FILES = 64
MAX_RULES = 10_000
# Each of these is tried for a question that no other rule answers, so they are fewer.
MAX_WILDCARD_RULES = 500
MAX_VALUE_CHARACTERS = 4096

# Keys that may be written in any case and without the space after the colon.
ORIGINAL = frozenset(verb for verb, kind in RULES.items() if kind.original) | {"allow"}
KEYS = frozenset(RULES) | {"allow", "deny", "include"}

_KEY_START = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_KEY_CHARACTERS = _KEY_START | frozenset("0123456789_-")
_SECOND_KEY = Pattern(rf"(?:^|[ \t])((?:{'|'.join(sorted(KEYS))}):)(?=[ \t]|\Z)", ignoring_case=True)
_EQUALS = Pattern(r"([A-Za-z][A-Za-z-]*)[ \t]*=")


def parse(
    text: str | bytes,
    *,
    root: str,
    path: str | None = None,
    display: str | None = None,
    home: str | None = None,
    resolve: Callable[[str], str] | None = None,
    find_program: Callable[[str], str | None] | None = None,
    libexec_of: Callable[[str], tuple[str, ...]] | None = None,
    read_include: Callable[[str], str | bytes] | None = None,
) -> Policy:
    """The policy that `text` says. Raises PolicySyntaxError.

    `root` is the absolute directory that relative paths of rules start from. `path` is the file of the text, absolute
    or relative to `root`; errors name it by `display`, else by `path`. `home` is what `~` means. `resolve` takes an
    absolute path to one without links (default: as if there were none), `find_program` a bare name or an absolute path
    to the resolved file of a program (default: none is found, so that no exec rule allows anything), `libexec_of` such
    a file to the directories of its own parts, `read_include` an absolute path to the content of a file, raising
    OSError (default: `include:` is an error).
    """
    if not root.startswith("/"):
        raise ValueError(f"root must be an absolute path, not {root!r}")
    resolver = resolve or lexical
    surroundings = Surroundings(
        root=root.rstrip("/") or "/",
        home=(home.rstrip("/") or "/") if home else None,
        resolve=resolver,
        find_program=find_program or (lambda _: None),
        libexec_of=libexec_of or (lambda _: ()),
    )
    file = "" if path is None else _joined(surroundings.root, path)
    reading = _Reading(surroundings, read_include)
    rules = tuple(reading.file(text, display or path or "<policy>", file, 0))
    sources = tuple(dict.fromkeys(resolver(source) for source in reading.sources))
    real_root = resolver(surroundings.root)
    return Policy(rules, surroundings.root, surroundings.home, real_root, sources)


class _Reading:
    """The state while one policy and its includes are read."""

    def __init__(self, surroundings: Surroundings, read_include: Callable[[str], str | bytes] | None) -> None:
        self._surroundings = surroundings
        self._read_include = read_include
        self._open: list[str] = []
        self._count = 0
        self._wildcards = 0
        self.sources: list[str] = []

    def file(self, content: str | bytes, display: str, file: str, depth: int) -> Iterator[Rule]:
        """The rules of one file in their order. `file` is its absolute path, '' for text without a file."""
        if file:
            self.sources.append(file)
        self._open.append(file)
        key = ""
        for line in lines(decode(content, display), display):
            if line.blank:
                key = ""
                continue
            for segment in line.segments:
                key, value, direct = self._keyed(segment, key)
                _refuse_a_second_key(value)
                if not direct:
                    _refuse_what_looks_like_a_rule(value)
                if key == "include":
                    yield from self._included(value, file, depth)
                else:
                    yield self._rule(key, value)
        self._open.pop()

    def _rule(self, key: str, value: Value) -> Rule:
        self._count += 1
        if self._count > MAX_RULES:
            value.fail("too_many_rules", f"more than {MAX_RULES} rules", "join some with a wildcard or a directory")
        if len(value.text) > MAX_VALUE_CHARACTERS:
            value.fail("value_too_long", f"a value of more than {MAX_VALUE_CHARACTERS} characters", "shorten it")
        if key not in ("exec", "deny exec") and is_pattern(value.text, classes=True):
            self._wildcards += 1
            if self._wildcards > MAX_WILDCARD_RULES:
                value.fail(
                    "too_many_rules", f"more than {MAX_WILDCARD_RULES} rules with wildcards", "name directories instead"
                )
        deny = key.startswith("deny ")
        return RULES[key[len("deny ") :] if deny else key].read_rule(value, self._surroundings, deny)

    def _keyed(self, segment: Value, key: str) -> tuple[str, Value, bool]:
        """The key that applies to a segment, its value, and whether the value stands directly after its key."""
        head, end = _key_of(segment.text)
        if head:
            gap = end - len(head) > 1
            rest = after(segment, end)
            spaced = end == len(segment.text) or segment.text[end] in " \t"
            if head.lower() in ORIGINAL or (head in KEYS and spaced and not gap):
                return self._started(head.lower(), rest)
            if head.lower() in KEYS or spaced:
                _fail_as_unknown_key(segment, head)
        if not key:
            segment.fail(
                "no_key",
                f"value {_shown(segment.text)} appears before any rule key",
                "begin the line with a key, for example `read: ./data`",
            )
        return key, segment, False

    def _started(self, head: str, rest: Value) -> tuple[str, Value, bool]:
        """A key and its first value."""
        verb, prefix = head, ""
        if head in ("allow", "deny"):
            named = rest
            word, rest = first_word(named)
            verb = word.lower() if word.lower() in ORIGINAL else word
            known = [name for name, kind in RULES.items() if (kind.deniable if head == "deny" else kind.allowable)]
            if verb not in known:
                named.fail(
                    "unknown_verb", f"unknown verb {word!r} after '{head}:'", f"the verbs are {', '.join(known)}"
                )
            prefix = "deny " if head == "deny" else ""
        if not rest.text:
            rest.fail("empty_value", f"empty value for '{verb}'", "write the value on the same line")
        inner, end = _key_of(rest.text)
        if inner and rest.text[end : end + 1] in ("", " ", "\t") and verb != "exec":
            rest.fail(
                "two_keys", f"a second key, {rest.text[:end]!r}, in one value", "put a comma or a new line before it"
            )
        return prefix + verb, rest, True

    def _included(self, value: Value, file: str, depth: int) -> Iterator[Rule]:
        if self._read_include is None:
            value.fail("bad_include", "nothing can be included here", "put the rules into this policy")
        target = _joined(file.rpartition("/")[0] or self._surroundings.root, value.text)
        if target in self._open:
            value.fail("include_cycle", f"{value.text!r} includes itself", "remove one of the include lines")
        if depth >= MAX_INCLUDE_DEPTH:
            value.fail("include_depth", f"more than {MAX_INCLUDE_DEPTH} includes below each other", "flatten them")
        if len(self.sources) > MAX_INCLUDED_FILES:
            value.fail("too_many_includes", f"more than {MAX_INCLUDED_FILES} included files", "join some of them")
        try:
            content = self._read_include(target)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            value.fail("bad_include", f"cannot read {target}: {reason}", "the path is relative to this file")
        yield from self.file(content, target, target, depth + 1)


def _key_of(text: str) -> tuple[str, int]:
    """The key that a text begins with and where its colon ends; '' when it begins with none."""
    before, colon, _ = text.partition(":")
    name = before.rstrip(" \t")
    is_key = bool(colon and name) and name[0] in _KEY_START and _KEY_CHARACTERS.issuperset(name)
    return (name, len(before) + 1) if is_key else ("", 0)


def _joined(directory: str, path: str) -> str:
    return lexical(path if path.startswith("/") else f"{directory}/{path}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _fail_as_unknown_key(segment: Value, head: str) -> None:
    lowered = head.lower().replace("_", "-")
    if lowered in KEYS:
        hint = f"write `{lowered}: ` in lower case and with a space after the colon"
    else:
        near = nearest(lowered, KEYS)
        hint = f"did you mean `{near}:`?" if near else f"the keys are {', '.join(sorted(KEYS))}"
    segment.fail("unknown_key", f"unknown key {head!r}", hint)


def _refuse_a_second_key(value: Value) -> None:
    """A key within a value is a forgotten comma."""
    found = _SECOND_KEY.search(value.text) if ":" in value.text else None
    if found is not None:
        value.fail(
            "two_keys", f"a second key, {found.group(1)!r}, in one value", "put a comma before it", found.start(1)
        )


def _refuse_what_looks_like_a_rule(value: Value) -> None:
    """A further value that begins like a rule is a forgotten colon, not a file of that name."""
    word, rest = first_word(value)
    equals = _EQUALS.match(value.text) if "=" in value.text else None
    name = equals.group(1).lower() if equals else word.lower()
    if name in KEYS and (equals is not None or rest.text):
        correct = value.text[equals.end() :].strip() if equals else rest.text
        value.fail(
            "looks_like_rule",
            f"value {_shown(value.text)} looks like a rule",
            f"write `{name}: {correct}`; if it is a value, put it directly after its key on a line of its own",
        )


def nearest(word: str, known: frozenset[str]) -> str | None:
    """The known word that is one or two edits away, if any."""
    best = min(sorted(known), key=lambda candidate: _distance(word, candidate))
    return best if _distance(word, best) <= min(2, len(word) // 2) else None


def _distance(a: str, b: str) -> int:
    """How many characters must be changed, added, removed or swapped with a neighbour to make `b` of `a`."""
    a = a[:20]
    rows = [list(range(len(b) + 1))]
    for i, left in enumerate(a, 1):
        row = [i]
        for j, right in enumerate(b, 1):
            cost = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, rows[i - 2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
