# SPDX-License-Identifier: MIT
"""`agentbox sandbox`: durable boxes of a server, from the command line."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import say
from agentbox.cli.sandbox_state import COMMANDS
from agentbox.cli.server_options import Server, run, server_options, table

_EXAMPLES = """
\b
Examples:
  id=$(agentbox sandbox create)
  agentbox sandbox exec $id -- python3 -c 'print(6 * 7)'
  agentbox sandbox cp ./project $id:project
  agentbox sandbox exec $id 'cd project && make test | tail -3'
  agentbox sandbox shell $id
  agentbox sandbox cp $id:project/report.html .
  agentbox sandbox rm $id
"""


@click.group(epilog=_EXAMPLES)
def sandbox() -> None:
    """Make and use durable boxes of a server: files and processes stay until the box is removed.

    The server is `agentbox serve`; name it with --url or AGENTBOX_URL, and yourself with --key or AGENTBOX_TOKEN.
    """


_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@sandbox.command(
    epilog="""
\b
Examples:
  agentbox sandbox create
  agentbox sandbox create --backend docker --image agentbox/base --memory 4g
  agentbox sandbox create --workspace project-7 --idle 3600
  agentbox sandbox create --policy net.policy --env CI=1
"""
)
@click.option("--backend", metavar="NAME", help="What holds it: jail, gvisor, docker [default: the server's].")
@click.option("--image", metavar="NAME", help="Image, for backends that have images.")
@click.option("--memory", default="2g", show_default=True, metavar="SIZE", help="Memory of everything in it.")
@click.option("--cpus", default="2", show_default=True, metavar="NUMBER", help="Processors that it may keep busy.")
@click.option("--pids", default=512, show_default=True, metavar="NUMBER", help="Processes and threads together.")
@click.option("--disk", default="1g", show_default=True, metavar="SIZE", help="Size of its workspace.")
@click.option(
    "--user", type=click.Choice(["agent", "root"]), default="agent", show_default=True, help="Who runs in it."
)
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable of every command; repeatable.")
@click.option("--policy", type=click.File("r"), help="File of a policy with `net:` rules.")
@click.option("--workspace", metavar="NAME", help="Workspace that is kept when the box is removed.")
@click.option("--idle", type=float, metavar="SECONDS", help="It ends when it was unused for so long.")
@click.option("--lifetime", type=float, metavar="SECONDS", help="It ends after so long.")
@server_options
@_JSON
def create(server: Server, *, as_json: bool, variables: tuple[str, ...], policy: Any, **how: Any) -> None:
    """Make a box and print its id."""
    env = dict(_variable(one) for one in variables)
    text = None if policy is None else policy.read()

    async def work() -> tuple[str, str]:
        from agentbox.sandbox.asynchronous import AsyncSandbox

        box = AsyncSandbox(
            how["image"],
            how["memory"],
            how["cpus"],
            how["pids"],
            backend=how["backend"],
            policy=text,
            workspace=how["workspace"],
            env=env,
            user=how["user"],
            disk=how["disk"],
            idle_timeout=how["idle"],
            max_lifetime=how["lifetime"],
            url=server.url,
            api_key=server.key,
            keep=True,
        )
        async with box:
            return str(box.container_id), box.backend

    made, backend = run(work())
    click.echo(json.dumps({"id": made, "backend": backend, "url": server.url}) if as_json else made)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


@sandbox.command(
    name="ls", epilog="\b\nExamples:\n  agentbox sandbox ls\n  agentbox sandbox ls --json | jq -r '.[].id'\n"
)
@click.option("-q", "--quiet", is_flag=True, help="Print the ids alone.")
@server_options
@_JSON
def ls(server: Server, *, as_json: bool, quiet: bool) -> None:
    """List your boxes, the oldest first."""
    found = run(server.ask("GET", ""))["sandboxes"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif quiet:
        for one in found:
            click.echo(one["id"])
    elif not found:
        say(f"no boxes at {server.url}: `agentbox sandbox create` makes one")
    else:
        now = time.time()
        rows = [
            (
                one["id"],
                one["status"],
                one["backend"],
                one.get("image") or "-",
                one.get("workspace") or "-",
                _age(now - one["created_at"]),
                _age(now - one["last_used_at"]),
            )
            for one in found
        ]
        table(("ID", "STATUS", "BACKEND", "IMAGE", "WORKSPACE", "AGE", "UNUSED"), rows)


@sandbox.command(epilog="\b\nExamples:\n  agentbox sandbox ps sbx-1f3a5c7e9b2d4f60\n")
@click.argument("sandbox_id", metavar="ID")
@server_options
@_JSON
def ps(server: Server, sandbox_id: str, *, as_json: bool) -> None:
    """List the commands of a box: what runs, and what ended last."""
    found = run(server.about(sandbox_id, "GET", "/commands"))["commands"]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    rows = [
        (
            one["id"],
            str(one["pid"] or "-"),
            _state(one),
            _age(one["elapsed_seconds"]),
            str(one["stdout_bytes"] + (one["stderr_bytes"] or 0)),
            _words(one["argv"]),
        )
        for one in found
    ]
    table(("COMMAND", "PID", "STATUS", "TIME", "OUTPUT", "WORDS"), rows)


def _state(command: dict[str, Any]) -> str:
    if command["running"]:
        return "running"
    if command["lost"]:
        return "lost"
    return "timed out" if command["timed_out"] else f"exit {command['exit_code']}"


def _words(argv: list[str]) -> str:
    import shlex

    text = argv[2] if argv[:2] in (["bash", "-c"], ["sh", "-c"]) and len(argv) == 3 else shlex.join(argv)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


@sandbox.command(
    epilog="""
\b
Examples:
  agentbox sandbox rm sbx-1f3a5c7e9b2d4f60
  agentbox sandbox rm $(agentbox sandbox ls -q)
"""
)
@click.argument("sandbox_ids", metavar="ID...", nargs=-1, required=True)
@server_options
def rm(server: Server, sandbox_ids: tuple[str, ...]) -> None:
    """Remove boxes with their files; a workspace that has a name stays."""
    for one in sandbox_ids:
        run(server.about(one, "DELETE", "", seconds=600.0))
        click.echo(one)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s" if seconds >= 10 else f"{max(seconds, 0):.1f}s"


def _leave(code: int) -> None:
    """End with a command's exit code."""
    sys.stdout.flush()
    sys.exit(code)


@sandbox.command(
    name="exec",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""
One word is a text for the box's shell, several are the words of a command. The exit code is the command's.

\b
Examples:
  agentbox sandbox exec $id 'ls | wc -l'
  agentbox sandbox exec $id -- python3 script.py --fast
  tar c . | agentbox sandbox exec -i $id -- tar x -C /work/copy
  agentbox sandbox exec -d $id -- python3 -m http.server
  agentbox sandbox exec --json --timeout 60 $id make
""",
)
@click.option("-i", "--interactive", is_flag=True, help="Give it this command's input.")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal, of this one's size.")
@click.option("-d", "--detach", is_flag=True, help="Only start it, and print its id.")
@click.option("--cwd", metavar="DIRECTORY", help="Where it runs, relative to /work.")
@click.option("--env", "variables", multiple=True, metavar="NAME=VALUE", help="Variable of it; repeatable.")
@click.option("--user", type=click.Choice(["agent", "root"]), help="Who it runs as.")
@click.option("--timeout", type=float, metavar="SECONDS", help="It is ended after so long.")
@server_options
@_JSON
@click.argument("sandbox_id", metavar="ID")
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(server: Server, sandbox_id: str, words: tuple[str, ...], *, variables: tuple[str, ...], **how: Any) -> None:
    """Run a command in a box."""
    from agentbox.cli import sandbox_exec

    how["env"] = dict(_variable(one) for one in variables)
    _leave(run(sandbox_exec.execute(server, sandbox_id, words, **how)))


@sandbox.command(
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  agentbox sandbox shell $id\n  agentbox sandbox shell $id -- python3\n",
)
@click.option("--cwd", metavar="DIRECTORY", help="Where it runs, relative to /work.")
@click.option("--user", type=click.Choice(["agent", "root"]), help="Who it runs as.")
@server_options
@click.argument("sandbox_id", metavar="ID")
@click.argument("words", metavar="[COMMAND...]", nargs=-1, type=click.UNPROCESSED)
def shell(server: Server, sandbox_id: str, words: tuple[str, ...], **how: Any) -> None:
    """Work in a box on a terminal, with bash or another program."""
    from agentbox.cli import sandbox_exec
    from agentbox.cli.console import fail

    if not sys.stdin.isatty() or not sys.stdout.isatty():
        fail("a shell needs a terminal", "`agentbox sandbox exec` runs commands without one", exit_codes.USAGE)
    _leave(run(sandbox_exec.shell(server, sandbox_id, words, **how)))


@sandbox.command(
    epilog="""
Links in a directory are left out: nothing leads out of the box.

\b
Examples:
  agentbox sandbox cp ./project $id:project
  agentbox sandbox cp $id:project/report.html .
  agentbox sandbox cp $id:/work ./everything
"""
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@server_options
def cp(server: Server, source: str, target: str) -> None:
    """Copy files and directories into a box (ID:PATH) or out of it."""
    from agentbox.cli import sandbox_copy

    run(sandbox_copy.copy(server, source, target))


for _command in COMMANDS:
    sandbox.add_command(_command)
