# SPDX-License-Identifier: MIT
"""`agentbox serve`: answer HTTP until told to stop."""

from __future__ import annotations

import errno
import importlib.util
import socket

import click

from agentbox import config
from agentbox.cli import exit_codes
from agentbox.cli.console import WITHOUT_A_WALL, errors_are_lines, fail, load_settings, say

SERVER_MODULES = ("httptools", "pydantic", "starlette", "uvicorn")
BACKLOG = 2048
HINTS = {
    errno.EADDRINUSE: "another program listens there; choose another with --port, or --port 0 for a free one",
    errno.EACCES: "ports below 1024 need root; choose another with --port",
}


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on; default AGENTBOX_HOST, else 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="Port; default AGENTBOX_PORT, else 8080.")
@click.option("--backend", type=click.Choice(config.BACKEND_NAMES), help="Isolation; default auto, which is jail.")
@click.option("--allow-unisolated", is_flag=True, help="Permit the backends that have no wall.")
def serve(host: str | None, port: int | None, backend: str | None, allow_unisolated: bool) -> None:
    """Run the HTTP service."""
    missing = [name for name in SERVER_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        hint = "install them with: pip install 'agentbox[server]'"
        fail(f"the server needs packages that are not installed: {', '.join(missing)}", hint, exit_codes.FAILURE)
    with errors_are_lines():
        settings = load_settings(
            host=host, port=port, sandbox_backend=backend, allow_unisolated=allow_unisolated or None
        )
        _serve(settings)


def _serve(settings: config.Settings) -> None:
    from agentbox.isolation.registry import DEFAULT
    from agentbox.server.serve import serve as answer

    backend = DEFAULT if settings.sandbox_backend == "auto" else settings.sandbox_backend
    listener = bind(settings.host, settings.port)

    def on_ready(host: str, port: int) -> None:
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        say(f"listening on {url} (backend {backend}, documentation at {url}/docs)")
        if backend in WITHOUT_A_WALL:
            say(f"warning: {backend} has no wall: code can do whatever this user can do on this machine")

    with listener:
        answer(settings, listener, on_ready)


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to the address; ends the process with a message where that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:  # ValueError: text that cannot be a name, as in "a..b"
        reason = getattr(error, "strerror", None) or str(error)
        hint = HINTS.get(getattr(error, "errno", None) or 0, "choose an address of this machine with --host")
        fail(f"cannot listen on {host!r} port {port}: {reason}", hint, exit_codes.CANNOT_LISTEN)
    return listener
