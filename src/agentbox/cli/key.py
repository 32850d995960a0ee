# SPDX-License-Identifier: MIT
"""`agentbox key`: the key that signs this user's traces."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import errors_are_lines, fail, load_settings

if TYPE_CHECKING:
    from agentbox.trace.keys import KeyStore, PublicKey


@click.group()
def key() -> None:
    """Show, make or hand out the key that signs your traces."""


@key.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def show(as_json: bool) -> None:
    """Show the name of your key, and where it lies."""
    with errors_are_lines():
        store = _store()
        trusted = store.trusted()
    if not trusted:
        fail(
            f"there is no key in {store.directory} yet",
            "`agentbox key new` makes one, and so does the first run that is recorded",
            exit_codes.FAILURE,
        )
    _print(trusted[0], store, as_json, former=trusted[1:])


@key.command()
@click.option("--replace", is_flag=True, help="Also when there is a key: traces that it signed stay verifiable.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def new(replace: bool, as_json: bool) -> None:
    """Make a key."""
    with errors_are_lines():
        store = _store()
        existing = store.load()
        if existing is not None and not replace:
            fail(
                f"there is a key already: {existing.public.id}",
                "`agentbox key new --replace` makes another one",
                exit_codes.FAILURE,
            )
        made = store.replace()
        trusted = store.trusted()
    _print(made.public, store, as_json, former=trusted[1:])


@key.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def export(file: Path | None) -> None:
    """Write your public key as PEM to a new FILE, or to stdout: others verify your traces with it."""
    with errors_are_lines():
        store = _store()
        trusted = store.trusted()
    if not trusted:
        fail(f"there is no key in {store.directory} yet", "`agentbox key new` makes one", exit_codes.FAILURE)
    if file is None:
        click.echo(trusted[0].pem(), nl=False)
        return
    try:
        with file.open("x", encoding="ascii") as opened:
            opened.write(trusted[0].pem())
    except OSError as error:
        fail(f"{file}: {error.strerror}", "name a file that does not exist yet", exit_codes.FAILURE)


def _store() -> KeyStore:
    from agentbox.trace.keys import KeyStore

    return KeyStore(load_settings().trace_key_dir())


def _print(public: PublicKey, store: KeyStore, as_json: bool, former: tuple[PublicKey, ...]) -> None:
    names = [one.id for one in former]
    if as_json:
        facts = {
            "id": public.id,
            "public_pem": public.pem(),
            "path": str(store.signing_path),
            "ledger": str(store.ledger_path),
            "former": names,
        }
        click.echo(json.dumps(facts))
        sys.exit(exit_codes.OK)
    click.echo(f"key     {public.id}\nfile    {store.signing_path}\nledger  {store.ledger_path}")
    for name in names:
        click.echo(f"former  {name}")
