# SPDX-License-Identifier: MIT
"""`agentbox image`: make, import and list the images that containers are made of."""

from __future__ import annotations

import json
import os
import sys

import click

from agentbox.cli.console import Progress, errors_are_lines, load_settings, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbox.isolation.backends.docker.engine import Engine

_MIB = 1 << 20


@click.group()
def image() -> None:
    """Make, import and list images for backends docker and gvisor."""


@image.command()
@click.option("--name", default="agentbox/base", show_default=True, help="Name of the image in the Docker engine.")
@click.option("--suite", default="", help="Release of the distribution. Default: this host's, where it is Debian.")
@click.option("--source", default="", metavar="URL|FILE", help="Mirror, or file of sources. Default: this host's.")
@click.option("--with", "more", default="", metavar="PACKAGES", help="Further packages, separated by commas.")
@click.option("--output", type=click.Path(dir_okay=False), help="Keep the tar file here.")
@click.option("--tar-only", is_flag=True, help="Make the tar file of --output, and give it to no engine.")
def build(name: str, suite: str, source: str, more: str, output: str | None, tar_only: bool) -> None:
    """Make an image on this host: Python, pip, Node, git, a C compiler. Takes a minute, and no registry."""
    import tempfile

    from agentbox.isolation.backends.docker import building

    if tar_only and output is None:
        raise click.UsageError("--tar-only needs --output FILE")
    packages = (*building.PACKAGES, *(part.strip() for part in more.split(",") if part.strip()))
    with errors_are_lines(), tempfile.TemporaryDirectory(prefix="agentbox-image-") as directory:
        building.parts_of(name)
        engine = None if tar_only else _engine()
        tarball = os.path.abspath(output) if output is not None else os.path.join(directory, "image.tar")
        steps = _Steps(f"building {name}")
        try:
            building.build(tarball, steps.show, suite=suite, source=source, packages=packages)
            made = building.give(engine, tarball, name, steps.show) if engine is not None else ""
        finally:
            steps.clear()
        size = os.path.getsize(tarball) // _MIB
    click.echo(f"made {name} ({size} MB, {made[:19]})" if made else f"made {tarball} ({size} MB)")


@image.command(name="import")
@click.argument("tarball", type=click.Path(dir_okay=False))
@click.option("--name", default="agentbox/base", show_default=True, help="Name of the image.")
@click.option("--gvisor", is_flag=True, help="Unpack it for backend gvisor, and give it to no engine. Needs root.")
def import_(tarball: str, name: str, gvisor: bool) -> None:
    """Make an image of TARBALL, a tar file of a root file system."""
    from agentbox.isolation.backends.docker import building

    with errors_are_lines():
        if gvisor:
            from agentbox.isolation.backends.gvisor import images

            image = images.unpack(str(load_settings().resolved_state_dir() / "images"), name, tarball)
            click.echo(f"made {image.name} for gVisor boxes at {image.rootfs}")
            return
        building.parts_of(name)
        engine = _engine()
        steps = _Steps(f"importing {tarball}")
        try:
            made = building.give(engine, tarball, name, steps.show)
        finally:
            steps.clear()
    click.echo(f"made {name} ({made[:19]})")


@image.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON list.")
def list_(as_json: bool) -> None:
    """Show the images of the Docker engine."""
    from agentbox.isolation.backends.docker import building

    with errors_are_lines():
        found = building.listed(_engine())
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for each in found:
        mark = "  made here" if each["made_here"] else ""
        click.echo(f"{each['name']:<40} {each['bytes'] // _MIB:>6} MB{mark}")
    if not found:
        say("the docker engine has no images: `agentbox image build` makes one")


def _engine() -> Engine:
    """The engine of the settings, which must answer. Raises IsolationError."""
    from agentbox.isolation.backends.docker.engine import Engine

    engine = Engine(load_settings().docker_host)
    engine.ask("GET", "/version", timeout=10.0)
    return engine


class _Steps:
    """What happens now: a line that changes on a terminal, elsewhere a line for each step."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._progress = Progress()
        self._terminal = sys.stderr.isatty()
        say(title)

    def show(self, step: str) -> None:
        """Name the step that began."""
        if self._terminal:
            self._progress.show(f"{self._title}: {step}")
        else:
            say(f"  {step}")

    def clear(self) -> None:
        """Remove the line."""
        self._progress.clear()
