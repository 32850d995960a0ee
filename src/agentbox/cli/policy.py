# SPDX-License-Identifier: MIT
"""`agentbox policy`: check a policy file, and ask what it allows."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, fail
from agentbox.errors import PolicySyntaxError

if TYPE_CHECKING:
    from agentbox.policy.decision import Decision
    from agentbox.policy.document import Policy
    from agentbox.policy.lint import Finding
    from agentbox.policy.questions import Question

VERBS = "read PATH, write PATH, net HOST[:PORT], net unix:PATH, exec WORD..., env NAME"

_file = click.argument("file", metavar="FILE", type=click.Path())
_root = click.option("--root", metavar="DIRECTORY", help="What relative paths start from; default: here.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def policy() -> None:
    """Check a policy file, or ask what it allows."""


@policy.command()
@_file
@_root
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@_json
def check(file: str, root: str | None, strict: bool, as_json: bool) -> None:
    """Report errors of FILE, and rules that are dangerous, dead, shadowed or double."""
    from agentbox.engine.policy_world import HostFiles, load_policy
    from agentbox.policy.lint import lint

    with errors_are_lines():
        try:
            read = load_policy(file, root=root)
        except PolicySyntaxError as error:
            click.echo(json.dumps(_error_as_json(error)) if as_json else _error_as_text(error))
            sys.exit(exit_codes.FAILURE)
    findings = lint(read, HostFiles().exists)
    if as_json:
        click.echo(json.dumps(_checked_as_json(file, read, findings), indent=2))
    else:
        for finding in findings:
            click.echo(_finding_as_text(finding))
        click.echo(f"{file}: {_count(len(read.rules), 'rule')}, {_count(len(findings), 'warning')}")
    sys.exit(exit_codes.FAILURE if strict and findings else exit_codes.OK)


@policy.command(context_settings={"ignore_unknown_options": True})
@_file
@click.argument("verb", metavar="VERB")
@click.argument("value", metavar="VALUE...", nargs=-1, required=True, type=click.UNPROCESSED)
@_root
@_json
def explain(file: str, verb: str, value: tuple[str, ...], root: str | None, as_json: bool) -> None:
    """Say whether FILE allows something, and which rule decides.

    What to ask: read PATH, write PATH, net HOST[:PORT], net unix:PATH, exec WORD..., env NAME. Exits with 1 when it
    is denied. Options stand before FILE or before `--`.
    """
    from agentbox.engine.policy_world import load_policy
    from agentbox.policy.evaluation import decide

    with errors_are_lines():
        read = load_policy(file, root=root)
    question = _question(verb, value, read.root)
    if question is None:
        fail(f"{verb!r} with {len(value)} words is no question", f"ask for one of: {VERBS}", exit_codes.USAGE)
    decision = decide(read, question)
    if as_json:
        click.echo(json.dumps(_decision_as_json(verb, question, decision), indent=2))
    else:
        click.echo(_decision_as_text(verb, question, decision))
    sys.exit(exit_codes.OK if decision.allowed else exit_codes.FAILURE)


def _question(verb: str, words: tuple[str, ...], root: str) -> Question | None:
    """The question of a command line, None when it is none."""
    from agentbox.engine.policy_world import Programs, absolute
    from agentbox.policy.questions import Env, Exec, Read, Write

    match verb, words:
        case "exec", [name, *_]:
            return Exec(words, Programs().find(absolute(name, root) if "/" in name else name))
        case "read", [path]:
            return Read(absolute(path, root))
        case "write", [path]:
            return Write(absolute(path, root))
        case "net", [target]:
            return _net_question(target, root)
        case "env", [name]:
            return Env(name)
        case _:
            return None


def _net_question(text: str, root: str) -> Question:
    from agentbox.engine.policy_world import absolute
    from agentbox.policy.hosts import parse_address
    from agentbox.policy.questions import Connect, Resolve, Unix

    if text.startswith("unix:"):
        path = text[len("unix:") :]
        return Unix(path if path.startswith("@") else absolute(path, root))
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and len(port) <= 5 and parse_address(text) is None:
        return Connect(host, int(port))
    return Resolve(text)


def _error_as_text(error: PolicySyntaxError) -> str:
    return (
        f"{error.path}:{error.line}:{error.column}: error: {error.reason}\n"
        f"    {error.source}\n    {error.caret}\nhint: {error.hint}"
    )


def _error_as_json(error: PolicySyntaxError) -> dict[str, Any]:
    return {
        "path": error.path,
        "ok": False,
        "error": {
            "line": error.line,
            "column": error.column,
            "problem": error.problem,
            "message": error.reason,
            "hint": error.hint,
            "source": error.source,
        },
    }


def _finding_as_text(finding: Finding) -> str:
    place = finding.rule.place
    return (
        f"{place.path}:{place.line}:{place.column}: warning: {finding.kind}: `{finding.rule.text}`: {finding.message}\n"
        f"hint: {finding.advice}"
    )


def _checked_as_json(file: str, read: Policy, findings: tuple[Finding, ...]) -> dict[str, Any]:
    return {
        "path": file,
        "ok": True,
        "policy_sha256": read.policy_sha256,
        "rules": len(read.rules),
        "warnings": [
            {
                "kind": finding.kind,
                "path": finding.rule.place.path,
                "line": finding.rule.place.line,
                "column": finding.rule.place.column,
                "rule": finding.rule.text,
                "message": finding.message,
                "advice": finding.advice,
            }
            for finding in findings
        ],
    }


def _asked(question: Question) -> str:
    """What was asked, after paths were resolved and programs found."""
    from agentbox.policy.questions import Connect, Env, Exec, Read, Resolve, Unix, Write

    match question:
        case Read(path=path) | Write(path=path) | Unix(path=path):
            return path
        case Connect(host=host, port=port):
            return f"{host}:{port}"
        case Resolve(host=host):
            return host
        case Exec(argv=argv, program=program):
            return f"{' '.join(argv)} ({program or 'no such program'})"
        case Env(name=name):
            return name


def _decision_as_text(verb: str, question: Question, decision: Decision) -> str:
    lines = [f"{'allowed' if decision.allowed else 'denied'}: {verb} {_asked(question)}", decision.reason]
    lines += [f"counted by `{rule.text}` (line {rule.place.line})" for rule in decision.counting]
    lines.append(f"held by: {decision.layer_hint}")
    return "\n".join(lines)


def _decision_as_json(verb: str, question: Question, decision: Decision) -> dict[str, Any]:
    rule = decision.rule
    return {
        "verb": verb,
        "asked": _asked(question),
        "allowed": decision.allowed,
        "rule": None
        if rule is None
        else {"text": rule.text, "path": rule.place.path, "line": rule.place.line, "column": rule.place.column},
        "reason": decision.reason,
        "held_by": decision.layer_hint,
        "counted_by": [counting.text for counting in decision.counting],
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
