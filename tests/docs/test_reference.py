# SPDX-License-Identifier: MIT
"""The documentation says what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from agentbox import __version__
from agentbox.cli import exit_codes
from agentbox.config import RETIRED, Settings, env_name
from tests.docs.render import PARTS, REPOSITORY, commands, error_classes, part_of

PAGES = sorted(
    path
    for path in [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").glob("*.md"),
    ]
)

# Names that stand in the environment of tests, benchmarks or guests, or of clients, and are no settings.
OTHER_VARIABLES = re.compile(
    r"AGENTBOX_(TEST|BENCH)_[A-Z0-9_]+|AGENTBOX_(URL|HOST_TMP|DOCKER_SOCKET|RUN_ID|POLICY|CHANNEL|ROOT|MODE|ENFORCE|WALL|PRIVATE|ENTRY|NODE_FLAGS|SEED|CLOCKS)\b"
)


def page_id(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("name", PARTS)
def test_generated_part_equals_what_the_code_says(name: str) -> None:
    path, render = PARTS[name]
    text = (REPOSITORY / path).read_text(encoding="utf-8")
    assert part_of(text, name).group() == render(), f"{path} is out of date: run `make docs`"


def test_every_setting_has_a_row() -> None:
    text = (REPOSITORY / "docs/reference/settings.md").read_text(encoding="utf-8")
    assert [f.name for f in fields(Settings) if f"| `{env_name(f.name)}` |" not in text] == []


def test_every_error_code_has_a_row_and_is_unique() -> None:
    text = (REPOSITORY / "docs/reference/errors.md").read_text(encoding="utf-8")
    codes = [error.code for error in error_classes()]
    assert [code for code in codes if f"| `{code}` |" not in text] == []
    assert len(codes) == len(set(codes))


def test_every_exit_code_has_a_meaning() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert codes == exit_codes.MEANINGS.keys()


def test_every_command_and_option_has_a_help_text() -> None:
    for typed, command in commands():
        assert command.help, f"{typed} has no help"
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                # Old versions of click have no help for arguments: the command's own help speaks of them.
                continue
            assert getattr(parameter, "help", None), f"{typed} {parameter.name} has no help"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_of_page_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_settings_that_page_names_exist(page: Path) -> None:
    known = {env_name(f.name) for f in fields(Settings)} | RETIRED.keys()
    named = set(re.findall(r"\bAGENTBOX_[A-Z0-9_]*[A-Z0-9]\b", page.read_text(encoding="utf-8")))
    assert {name for name in named - known if not OTHER_VARIABLES.fullmatch(name)} == set()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_that_page_names_exist(page: Path) -> None:
    known = {typed.split()[1] for typed, _ in commands() if " " in typed}
    named = set(re.findall(r"(?:^|`|\$ )agentbox ([a-z]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= known | {"runs", "needs", "is"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_that_page_names_exist(page: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^|`|\$ )make ([a-z-]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)) <= known


def test_changelog_follows_keep_a_changelog_and_names_this_version() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[([^\]]+)\](?: - \d{4}-\d{2}-\d{2})?$", text, re.MULTILINE)
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(versions)
    assert versions[0] == "Unreleased" or versions[0] == __version__
    assert __version__ in versions
    sections = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert sections <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors that a Markdown viewer gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _fences_removed(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _fences_removed(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)
