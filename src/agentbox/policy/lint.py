# SPDX-License-Identifier: MIT
"""Rules that a reader of a policy should look at again: dangerous, without effect, or probably not meant.

Pure: whether a path exists is a function that the caller gives. A finding is not an error; the policy means what it
says.
"""

from __future__ import annotations

from agentbox.policy.answers.programs import same_name
from agentbox.policy.parser import KEYS, nearest
from agentbox.policy.paths import covers, is_below, upwards
from agentbox.policy.rule import EnvTarget, ExecTarget, HostTarget, PathTarget, UnixTarget
from agentbox.records import StrEnum, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentbox.policy.document import Policy
    from agentbox.policy.rule import Rule


class Kind(StrEnum):
    """What is the matter with a rule. Only `dangerous` gives much away."""

    DANGEROUS = "dangerous"
    SHADOWED = "shadowed"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    SUSPICIOUS = "suspicious"


class _Rules:
    """The rules of a policy, found by what they are about: the work for a rule does not grow with their number."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.granted = {rule.verb for rule in policy.rules if not rule.deny}
        self.any_host: list[tuple[Rule, HostTarget]] = []
        self._at: dict[str, list[Rule]] = {}
        self._patterns: list[Rule] = []
        self._verbs_below: dict[str, set[str]] = {}
        self._commands: dict[tuple[str, ...], Rule] = {}
        for rule in policy.rules:
            target = rule.target
            if isinstance(target, PathTarget):
                (self._patterns if target.pattern else self._at.setdefault(target.path, [])).append(rule)
                for directory in () if rule.deny else upwards(target.path):
                    self._verbs_below.setdefault(directory, set()).add(rule.verb)
            elif isinstance(target, ExecTarget) and not rule.deny:
                self._commands.setdefault(target.words, rule)
            elif isinstance(target, HostTarget) and target.any_host and not rule.deny:
                self.any_host.append((rule, target))

    def covering(self, path: str) -> Iterator[Rule]:
        """The path rules, denials too, that cover a path."""
        for directory in upwards(path):
            yield from self._at.get(directory, ())
        for rule in self._patterns:
            if isinstance(rule.target, PathTarget) and covers(rule.target, path):
                yield rule

    def grants_around(self, path: str) -> set[str]:
        """The verbs of grants that cover a path or lie below it; of one with wildcards its directory counts."""
        found = set(self._verbs_below.get(path, ()))
        found |= {rule.verb for rule in self.covering(path) if not rule.deny}
        found |= {r.verb for r in self._patterns if not r.deny and is_below(path, _path_of(r))}
        return found

    def shorter_command(self, words: tuple[str, ...]) -> Rule | None:
        """An exec rule whose words are the first of these."""
        found = (self._commands.get(words[:count]) for count in range(1, len(words)))
        return next((rule for rule in found if rule is not None), None)


def _path_of(rule: Rule) -> str:
    return rule.target.path if isinstance(rule.target, PathTarget) else ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark: the rule, what is the matter, and what to do."""

    kind: Kind
    rule: Rule
    message: str
    advice: str


# Programs that run whatever they are given: one of them allowed is every program of its kind allowed.
_INTERPRETER_NAMES = """
    sh bash dash zsh ksh mksh fish csh tcsh busybox toybox python pypy node nodejs deno bun ruby perl php lua luajit
    tclsh R Rscript julia java jshell ghci erl elixir iex guile racket sbcl awk gawk mawk nawk osascript pwsh expect
"""
_INTERPRETERS = frozenset(_INTERPRETER_NAMES.split())
_LAUNCHER_NAMES = """
    env xargs find sudo su doas nohup nice ionice timeout setsid stdbuf script watch parallel ssh strace ltrace gdb
    make cmake ninja npm npx yarn pnpm pip pipx uv uvx cargo go docker podman nsenter unshare chroot systemd-run at
    crontab tmux screen vi vim nvim emacs ed less more man tar rsync
"""
_LAUNCHERS = frozenset(_LAUNCHER_NAMES.split())
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PWD_", "API_KEY", "APIKEY", "PRIVATE_KEY", "CREDENTIAL")
_SECRET_HOLDERS = ("AWS_ACCESS_KEY_ID", "SSH_AUTH_SOCK", "DATABASE_URL", "GH_PAT", "NETRC", "KUBECONFIG")
# Directories whose every file is somebody's secret or everybody's system.
_WIDE = ("/", "/etc", "/usr", "/var", "/proc", "/sys", "/dev", "/root", "/home", "/boot", "/run", "/opt")
_SECRET_PLACES = (".ssh", ".aws", ".gnupg", ".kube", ".docker", ".netrc", ".config/gcloud", ".azure", ".password-store")
_PUBLIC_SUFFIX_LABELS = 2
_DOUBLE = "**"


def lint(policy: Policy, exists: Callable[[str], bool]) -> tuple[Finding, ...]:
    """Every finding, in the order of the rules."""
    rules = _Rules(policy)
    found: list[Finding] = []
    seen: dict[Rule, Rule] = {}
    for rule in policy.rules:
        twin = seen.setdefault(rule, rule)
        if twin is rule:
            found += _findings(rules, rule, exists)
        else:
            advice = "remove one of them"
            found.append(Finding(Kind.DUPLICATE, rule, f"line {twin.place.line} says the same", advice))
    return tuple(found)


def _findings(rules: _Rules, rule: Rule, exists: Callable[[str], bool]) -> Iterator[Finding]:
    target = rule.target
    if isinstance(target, PathTarget):
        yield from _path(rules, rule, target, exists)
    elif isinstance(target, HostTarget):
        yield from _host(rules, rule, target)
    elif isinstance(target, UnixTarget):
        yield from _socket(rule, target)
    elif isinstance(target, ExecTarget):
        yield from _program(rules, rule, target, exists)
    elif isinstance(target, EnvTarget):
        yield from _variable(rules, rule, target)
    head = rule.value.partition(":")[0]
    if head != rule.value and head.isalpha() and rule.verb in ("read", "write", "env", "exec"):
        near = nearest(head.lower(), KEYS)
        if near:
            yield Finding(
                Kind.SUSPICIOUS, rule, f"`{head}:` looks like a misspelt key", f"write `{near}: ` with a space after it"
            )


def _path(rules: _Rules, rule: Rule, target: PathTarget, exists: Callable[[str], bool]) -> Iterator[Finding]:
    if rule.deny:
        verbs = {"read", "write", "read-once"} if rule.verb == "read" else {"write"}
        if not verbs & rules.grants_around(target.path):
            advice = "remove it, or keep it as a guard for later rules"
            yield Finding(Kind.DEAD, rule, "nothing allows what it denies", advice)
        return
    yield from _wide_path(rules.policy, rule, target)
    for other in rules.covering(target.path):
        # What covers the directory of a pattern, with wildcards of its own, need not cover all that the pattern does.
        if other is rule or (target.pattern and isinstance(other.target, PathTarget) and other.target.pattern):
            continue
        where = f"`{other.text}` (line {other.place.line})"
        if other.deny and (other.verb == "read" or rule.verb == "write"):
            yield Finding(Kind.DEAD, rule, f"{where} denies all of it", "remove one of the two")
            return
        gives_as_much = other.verb == "write" or (other.verb == "read" and rule.verb == "read")
        counts = rule.verb == "read-once" or target.max_bytes is not None
        if not other.deny and gives_as_much and not counts and other != rule:
            yield Finding(Kind.SHADOWED, rule, f"{where} allows it already", "remove this rule")
            return
    if not exists(target.path):
        advice = "make it before the run, or correct the path"
        yield Finding(Kind.DEAD, rule, f"there is nothing at {target.path}", advice)


def _wide_path(policy: Policy, rule: Rule, target: PathTarget) -> Iterator[Finding]:
    what = "written" if rule.verb == "write" else "read"
    if target.path in _WIDE and (not target.pattern or _DOUBLE in target.pattern_text):
        yield Finding(
            Kind.DANGEROUS,
            rule,
            f"everything below {target.path} can be {what}",
            "name the directories that are needed",
        )
    elif policy.home is not None and is_below(policy.home, target.path):
        yield Finding(
            Kind.DANGEROUS,
            rule,
            f"the whole home directory can be {what}, with its keys and start files",
            "name the directories that are needed",
        )
    elif policy.home is not None and any(is_below(target.path, f"{policy.home}/{p}") for p in _SECRET_PLACES):
        yield Finding(Kind.DANGEROUS, rule, f"credentials can be {what}", "pass the one value that is needed by env:")
    elif rule.verb == "write" and not policy.protects and is_below(policy.real_root, target.path):
        yield Finding(
            Kind.DANGEROUS,
            rule,
            "hooks, editor and CI settings can be written, and run later outside",
            "add `protect: on`, or name the directories that are needed",
        )


def _host(rules: _Rules, rule: Rule, target: HostTarget) -> Iterator[Finding]:
    if rule.deny:
        if "net" not in rules.granted:
            yield Finding(Kind.DEAD, rule, "no `net:` rule allows any host", "remove it")
        return
    if target.any_host:
        yield Finding(
            Kind.DANGEROUS, rule, "everything that can be read can be sent anywhere", "name the hosts that are needed"
        )
        return
    name = rule.value.split()[0]
    if target.pattern and not target.address_pattern and name.count(".") < _PUBLIC_SUFFIX_LABELS:
        yield Finding(
            Kind.DANGEROUS, rule, f"{name} is everybody who has a name there", "name the hosts that are needed"
        )
    if target.network is not None and target.network.num_addresses > 1 << 24:
        yield Finding(Kind.DANGEROUS, rule, "the network is very large", "name a smaller one")
    if target.address is not None and str(target.address) == "169.254.169.254":
        yield Finding(Kind.DANGEROUS, rule, "cloud credentials are served there", "remove it")
    if target.rate is not None or target.name == "localhost" or not (target.name or target.pattern):
        return
    for other, wide in rules.any_host:
        if wide.port in (None, target.port):
            yield Finding(
                Kind.SHADOWED, rule, f"`{other.text}` (line {other.place.line}) allows it already", "remove one of them"
            )
            return


def _socket(rule: Rule, target: UnixTarget) -> Iterator[Finding]:
    if rule.deny:
        return
    if target.any_socket:
        yield Finding(Kind.DANGEROUS, rule, "every service of this host can be spoken to", "name the socket")
    elif target.path is not None and target.path.path.rpartition("/")[2] in ("docker.sock", "containerd.sock"):
        yield Finding(Kind.DANGEROUS, rule, "who can use it is root on this host", "remove it")


def _program(rules: _Rules, rule: Rule, target: ExecTarget, exists: Callable[[str], bool]) -> Iterator[Finding]:
    if rule.deny:
        if "exec" not in rules.granted:
            yield Finding(Kind.DEAD, rule, "no `exec:` rule allows any program", "remove it")
        return
    name = target.words[0].rpartition("/")[2]
    made = target.program is not None and any(
        other.verb == "write" and not other.deny for other in rules.covering(target.program)
    )
    if target.program is None or not (made or exists(target.program)):
        yield Finding(Kind.DEAD, rule, f"there is no program {target.words[0]!r}", "install it, or write its path")
    elif made:
        yield Finding(
            Kind.DANGEROUS,
            rule,
            f"{target.program} can be rewritten by the run itself",
            "move it out of the write rule",
        )
    if any(same_name(name, known) for known in _INTERPRETERS):
        yield Finding(
            Kind.DANGEROUS, rule, f"{name} runs any code that it is given", "name the programs that it would start"
        )
    elif any(same_name(name, known) for known in _LAUNCHERS) and len(target.words) == 1:
        yield Finding(Kind.DANGEROUS, rule, f"{name} can start other programs", "write the arguments that are needed")
    other = rules.shorter_command(target.words)
    if other is not None:
        where = f"`{other.text}` (line {other.place.line})"
        yield Finding(Kind.SHADOWED, rule, f"{where} allows it already", "remove one of them")


def _variable(rules: _Rules, rule: Rule, target: EnvTarget) -> Iterator[Finding]:
    if rule.deny:
        if "env" not in rules.granted:
            yield Finding(Kind.DEAD, rule, "no `env:` rule passes any variable on", "remove it")
        return
    name = target.text.upper()
    if not name.strip("*?"):
        yield Finding(Kind.DANGEROUS, rule, "every variable is passed on, with every secret", "name the variables")
    elif any(word in name for word in _SECRET_WORDS) or name in _SECRET_HOLDERS or name.startswith("AWS_*"):
        yield Finding(
            Kind.DANGEROUS,
            rule,
            "a secret is handed to the code that runs",
            "leave it out where the code can do without",
        )
    if name.startswith("AGENTBOX_"):
        yield Finding(Kind.SUSPICIOUS, rule, "agentbox sets these itself", "leave it out")
