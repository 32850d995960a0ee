# SPDX-License-Identifier: MIT
"""`agentbox health`: ask a server whether it is well."""

from __future__ import annotations

import json
from typing import Any

import click

from agentbox.cli import exit_codes
from agentbox.cli.console import fail

TIMEOUT_SECONDS = 10.0
DEFAULT_URL = "http://127.0.0.1:8080"
MAX_ANSWER_BYTES = 64 << 10


@click.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, metavar="URL", help="Address of the server.")
@click.option("--json", "as_json", is_flag=True, help="Print the server's answer as JSON.")
def health(url: str, as_json: bool) -> None:
    """Ask a running server whether it is well."""
    base = url.rstrip("/")
    answer = _ask(base)
    if as_json:
        click.echo(json.dumps(answer | {"url": base}))
    else:
        click.echo(f"agentbox {answer['version']} OK (backend {answer.get('backend', 'unknown')}, {base})")


def _ask(base: str) -> dict[str, Any]:
    """The body of GET /health; ends the process with a message when there is no healthy agentbox at `base`."""
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    try:
        parts = urllib.parse.urlsplit(base)
        scheme = parts.scheme if parts.hostname and parts.port != 0 else ""
    except ValueError:
        scheme = ""
    if scheme not in {"http", "https"}:
        fail(f"{base!r} is not an http or https URL", f"for example {DEFAULT_URL}", exit_codes.USAGE)
    # A proxy of the environment must not answer in place of a server on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{base}/health", timeout=TIMEOUT_SECONDS) as response:
            body = response.read(MAX_ANSWER_BYTES)
    except urllib.error.HTTPError as error:
        fail(f"{base} answered HTTP {error.code}, not as agentbox does", "check --url", exit_codes.FAILURE)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        fail(f"no server answers at {base}: {reason}", "start one with `agentbox serve`", exit_codes.FAILURE)
    try:
        answer = json.loads(body)
        well = answer["status"] == "ok" and bool(answer["version"])
    except (ValueError, KeyError, TypeError):
        fail(f"{base} answered, but it is not agentbox", "check --url", exit_codes.FAILURE)
    if not well:
        fail(f"agentbox at {base} says {answer['status']!r}", "look at its log", exit_codes.FAILURE)
    return dict(answer)
