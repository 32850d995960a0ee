# SPDX-License-Identifier: MIT
"""Rules that a reader of a policy should look at again: dangerous, without effect, or probably not meant.

Pure: whether a path exists is a function that the caller gives. A finding is not an error; the policy means what it
says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from agentbox.policy.answers.programs import same_name
from agentbox.policy.document import Policy
from agentbox.policy.parser import KEYS, nearest
from agentbox.policy.paths import covers, is_below
from agentbox.policy.rule import EnvTarget, ExecTarget, HostTarget, PathTarget, Rule, UnixTarget


class Kind(StrEnum):
    """What is the matter with a rule. Only `dangerous` gives much away."""

    DANGEROUS = "dangerous"
    SHADOWED = "shadowed"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    SUSPICIOUS = "suspicious"


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
    found: list[Finding] = []
    seen: dict[Rule, Rule] = {}
    for rule in policy.rules:
        twin = seen.setdefault(rule, rule)
        if twin is rule:
            found += _findings(policy, rule, exists)
        else:
            advice = "remove one of them"
            found.append(Finding(Kind.DUPLICATE, rule, f"line {twin.place.line} says the same", advice))
    return tuple(found)


def _findings(policy: Policy, rule: Rule, exists: Callable[[str], bool]) -> Iterator[Finding]:
    target = rule.target
    if isinstance(target, PathTarget):
        yield from _path(policy, rule, target, exists)
    elif isinstance(target, HostTarget):
        yield from _host(policy, rule, target)
    elif isinstance(target, UnixTarget):
        yield from _socket(rule, target)
    elif isinstance(target, ExecTarget):
        yield from _program(policy, rule, target)
    elif isinstance(target, EnvTarget):
        yield from _variable(policy, rule, target)
    head = rule.value.partition(":")[0]
    if head != rule.value and head.isalpha() and rule.verb in ("read", "write", "env", "exec"):
        near = nearest(head.lower(), KEYS)
        if near:
            yield Finding(
                Kind.SUSPICIOUS, rule, f"`{head}:` looks like a misspelt key", f"write `{near}: ` with a space after it"
            )


def _path(policy: Policy, rule: Rule, target: PathTarget, exists: Callable[[str], bool]) -> Iterator[Finding]:
    if rule.deny:
        yield from _path_denial(policy, rule, target)
        return
    yield from _wide_path(policy, rule, target)
    for other in policy.rules:
        if not isinstance(other.target, PathTarget) or other is rule:
            continue
        if not _covers_all(other.target, target):
            continue
        if other.deny and (other.verb == "read" or rule.verb == "write"):
            yield Finding(
                Kind.DEAD, rule, f"`{other.text}` (line {other.place.line}) denies all of it", "remove one of the two"
            )
            return
        gives_as_much = other.verb == "write" or (other.verb == "read" and rule.verb == "read")
        if not other.deny and gives_as_much and rule.verb != "read-once" and not target.max_bytes and other != rule:
            yield Finding(
                Kind.SHADOWED, rule, f"`{other.text}` (line {other.place.line}) allows it already", "remove this rule"
            )
            return
    if not exists(target.path):
        advice = "make it before the run, or correct the path"
        yield Finding(Kind.DEAD, rule, f"there is nothing at {target.path}", advice)


def _path_denial(policy: Policy, rule: Rule, target: PathTarget) -> Iterator[Finding]:
    verbs = ("read", "write", "read-once") if rule.verb == "read" else ("write",)
    for other in policy.rules:
        if other.deny or other.verb not in verbs or not isinstance(other.target, PathTarget):
            continue
        if is_below(target.path, other.target.path) or is_below(other.target.path, target.path):
            return
    yield Finding(Kind.DEAD, rule, "nothing allows what it denies", "remove it, or keep it as a guard for later rules")


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


def _covers_all(wide: PathTarget, narrow: PathTarget) -> bool:
    """Whether one target certainly covers all of another."""
    if wide.pattern:
        return not narrow.pattern and covers(wide, narrow.path)
    return is_below(narrow.path, wide.path)


def _host(policy: Policy, rule: Rule, target: HostTarget) -> Iterator[Finding]:
    if rule.deny:
        if not any(not r.deny and isinstance(r.target, HostTarget) for r in policy.rules):
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
    for other in policy.rules:
        wide = other.target
        if not other.deny and isinstance(wide, HostTarget) and wide.any_host and wide.port in (None, target.port):
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


def _program(policy: Policy, rule: Rule, target: ExecTarget) -> Iterator[Finding]:
    if rule.deny:
        if not any(not r.deny and r.verb == "exec" for r in policy.rules):
            yield Finding(Kind.DEAD, rule, "no `exec:` rule allows any program", "remove it")
        return
    name = target.words[0].rpartition("/")[2]
    if target.program is None:
        yield Finding(Kind.DEAD, rule, f"there is no program {target.words[0]!r}", "install it, or write its path")
    elif any(
        r.verb == "write" and not r.deny and isinstance(r.target, PathTarget) and covers(r.target, target.program)
        for r in policy.rules
    ):
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
    for other in policy.rules:
        if other is rule or other.deny or not isinstance(other.target, ExecTarget):
            continue
        shorter = len(other.target.words) < len(target.words)
        if shorter and target.words[: len(other.target.words)] == other.target.words:
            yield Finding(
                Kind.SHADOWED, rule, f"`{other.text}` (line {other.place.line}) allows it already", "remove one of them"
            )
            return


def _variable(policy: Policy, rule: Rule, target: EnvTarget) -> Iterator[Finding]:
    if rule.deny:
        if not any(not r.deny and r.verb == "env" for r in policy.rules):
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
