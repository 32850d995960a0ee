# SPDX-License-Identifier: MIT
"""Questions about a policy, answered from its tables. The meaning is that of `agentbox.policy.evaluation`, and the
same vectors hold both to it; here nothing is imported, and the counts are kept.

A verdict is (allowed, rule, reason, commit): `rule` is the deciding rule's row or None, `commit` counts the effect and
is called by `Answers` once every policy of a conjunction has allowed it.
"""

from __future__ import annotations

from .matching import covers, is_below, is_plain
from .net_answers import Network
from .program_answers import Programs
from .seal import sealed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MAX_COUNTED = 100_000
# Columns of a rule's row.
VERB, DENY, TEXT, LINE, CANONICAL, TARGET = range(6)


@sealed
class Answers:
    """What a policy, or several at once, say. `counting` is false where nobody knows what happened before."""

    def __init__(self, tables: Any, counting: bool = True) -> None:
        protection = tables["protected"]
        special = tables["special"]
        self._policies = tuple([_Policy(policy, protection, special, counting) for policy in tables["policies"]])
        self.once_targets = [row[TARGET] for policy in self._policies for row in policy.once]
        self.has_once = bool(self.once_targets)
        self.caps = [row[TARGET] for policy in self._policies for row in policy.capped]
        self.write_targets = [target for policy in self._policies for target in policy.write_targets]
        self.lent = [base for policy in self._policies for base in policy.lent]

    def read(self, path: str, identity: Any = None) -> Any:
        """May a resolved file be read? `identity` is `device:inode`."""
        return self._all([policy.read(path, identity) for policy in self._policies])

    def write(self, path: str, size: Any = None, identity: Any = None, whole: bool = False) -> Any:
        """May a resolved path be written, made, removed or renamed? `size` is what the file will have, in bytes;
        `whole` means a directory with everything in it, as renaming does."""
        return self._all([policy.write(path, size, identity, whole) for policy in self._policies])

    def resolve(self, host: Any) -> Any:
        """May the address of a name be looked up?"""
        return self._all([policy.network.resolve(host) for policy in self._policies])

    def connect(self, host: Any, port: Any, address: Any = None, now: Any = None) -> Any:
        """May a connection be made? `now` in seconds, of a clock that only goes forward."""
        return self._all([policy.network.connect(host, port, address, now) for policy in self._policies])

    def unix(self, path: Any, now: Any = None) -> Any:
        """May a UNIX socket be used? An abstract name begins with `@`."""
        return self._all([policy.network.unix(path, now) for policy in self._policies])

    def start(self, argv: Any, program: Any, parent: Any = None) -> Any:
        """May a resolved program be started with these words?"""
        return self._all([policy.programs.start(argv, program, parent) for policy in self._policies])

    def expect_once(self, identity: str) -> None:
        """Count a file as one that may be read one time, under whatever name."""
        for policy in self._policies:
            if policy.once and len(policy.expected) < _MAX_COUNTED:
                policy.expected[identity] = True

    def _all(self, verdicts: Any) -> Any:
        for verdict in verdicts:
            if not verdict[0]:
                return verdict
        for verdict in verdicts:
            if verdict[3] is not None:
                verdict[3]()
        return verdicts[0]


@sealed
class _Policy:
    """One policy's tables of files; its other tables are attributes."""

    def __init__(self, tables: Any, protection: Any, special: Any, counting: bool) -> None:
        rows = tables["rules"]
        grants = [row for row in rows if not row[DENY]]
        denials = [row for row in rows if row[DENY]]
        self._counting = counting
        self._own = tables["own"]
        self._read_denials = _table([row for row in denials if row[VERB] == "read"])
        self._write_denials = _table([row for row in denials if row[VERB] in ("read", "write")])
        self._reads = _table([row for row in grants if row[VERB] in ("read", "write", "read-once")])
        self._writes = _table([row for row in grants if row[VERB] == "write"])
        self.write_targets = [row[TARGET] for row in grants if row[VERB] == "write"]
        self.lent = [row[TARGET][1] for row in grants if row[TARGET][0] == "path"]
        self.once = [row for row in grants if row[VERB] == "read-once"]
        self.capped = [row for row in grants if row[TARGET][0] == "path" and row[TARGET][4] is not None]
        self._protection = protection
        self._protects: Any = None
        for row in rows:
            if row[TARGET][0] == "switch" and row[TARGET][1] and self._protects is None:
                self._protects = row
        self.expected: dict[str, bool] = {}
        self._spent: dict[str, bool] = {}
        self.sizes: dict[str, dict[str, int]] = {}
        self.network = Network(grants, denials, special, counting)
        self.programs = Programs(grants, denials)

    def read(self, path: str, identity: Any) -> Any:
        if type(path) is not str or not is_plain(path):
            return False, None, "the path is not absolute and resolved", None
        denied = _find(self._read_denials, path)
        if denied is not None:
            return False, denied, "denied", None
        granted = _find(self._reads, path)
        if granted is None:
            return False, None, "no `read:` or `write:` rule covers it", None
        if not self.once or not self._counting:
            return True, granted, "", None
        return self._read_once(path, identity or path, granted)

    def _read_once(self, path: str, identity: str, granted: Any) -> Any:
        rule = None
        for row in self.once:
            if covers(row[TARGET], path):
                rule = row
                break
        if rule is None and identity not in self.expected:
            return True, granted, "", None
        rule = rule or self.once[0]
        if identity in self._spent:
            return False, rule, "this file was read before", None
        if len(self._spent) >= _MAX_COUNTED:
            return False, rule, "more files than can be counted", None

        def commit() -> None:
            self.expected[identity] = self._spent[identity] = True

        return True, granted, "", commit

    def write(self, path: str, size: Any, identity: Any, whole: bool) -> Any:
        if type(path) is not str or not is_plain(path):
            return False, None, "the path is not absolute and resolved", None
        denied = _find(self._write_denials, path)
        if denied is not None:
            return False, denied, "denied", None
        for own in self._own:
            if is_below(path, own):
                return False, None, "it is the policy or where traces lie", None
        if whole:
            within = _find_within(self._write_denials, path)
            if within is not None:
                return False, within, "denied", None
            for own in self._own:
                if is_below(own, path):
                    return False, None, "it holds the policy or where traces lie", None
        granted = _find(self._writes, path)
        if granted is None:
            return False, None, "no `write:` rule covers it", None
        if self._protects is not None:
            why = _why_protected(path, self._protection)
            if why:
                return False, self._protects, why, None
        if not self.capped or size is None or not self._counting:
            return True, granted, "", None
        return self._capped(path, size if size > 0 else 0, identity or path, granted)

    def _capped(self, path: str, size: int, identity: str, granted: Any) -> Any:
        counted = []
        for row in self.capped:
            if covers(row[TARGET], path):
                sizes = self.sizes.setdefault(row[CANONICAL], {})
                before = sizes.get(identity, 0)
                if sum(sizes.values()) - before + size > row[TARGET][4] and size > before:
                    return False, row, f"the files below it would pass {row[TARGET][4]} bytes", None
                if len(sizes) >= _MAX_COUNTED and identity not in sizes:
                    return False, row, "more files than can be counted", None
                counted.append(sizes)

        def commit() -> None:
            for sizes in counted:
                if size:
                    sizes[identity] = size
                else:
                    sizes.pop(identity, None)

        return True, granted, "", commit


def _table(rows: Any) -> Any:
    """Exact paths, and the rows with a pattern; of two rows for one path the first speaks."""
    exact: dict[str, Any] = {}
    patterns = []
    for row in rows:
        target = row[TARGET]
        if target[0] != "path":
            continue
        if target[2]:
            patterns.append(row)
            continue
        exact.setdefault(target[1], row)
        if row[DENY] and target[3]:
            exact.setdefault(target[3], row)
    return exact, tuple(patterns)


def _find(table: Any, path: str) -> Any:
    exact, patterns = table
    if exact:
        at = path
        while at:
            found = exact.get(at)
            if found is not None:
                return found
            at = at[: at.rfind("/")]
        found = exact.get("/")
        if found is not None:
            return found
    for row in patterns:
        if covers(row[TARGET], path):
            return row
    return None


def _find_within(table: Any, directory: str) -> Any:
    """The first rule for something below a directory."""
    exact, patterns = table
    for path, row in exact.items():
        if is_below(path, directory):
            return row
    for row in patterns:
        if is_below(row[TARGET][1], directory):
            return row
    return None


def _why_protected(path: str, protection: Any) -> Any:
    parts = path.lower().split("/")
    names = protection["names"]
    before = ""
    submodules = False
    for part in parts:
        if part in names:
            return names[part]
        for first, second, why in protection["sequences"]:
            if part == second and before == first:
                return why
        if submodules and part in protection["submodule"]:
            return protection["submodule"][part]
        submodules = submodules or (before == ".git" and part == "modules")
        before = part
    last = parts[-1]
    dot = last.rfind(".")
    return protection["last"].get(last) or (protection["suffixes"].get(last[dot:]) if dot >= 0 else None)
