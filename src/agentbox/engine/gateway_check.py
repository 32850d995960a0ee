# SPDX-License-Identifier: MIT
"""Whether boxes can be given a way out on this host: attached ones must hold like others, and meet the gateway."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator

from agentbox.egress.attachment import Attachment
from agentbox.egress.events import EgressEvent
from agentbox.egress.gateway import Gateway
from agentbox.egress.names import GATEWAY_IPV4, SyntheticNames
from agentbox.egress.rules import EgressRules
from agentbox.egress.stock import AttachmentStock
from agentbox.egress.upstream import Upstream
from agentbox.errors import AgentboxError
from agentbox.isolation.backend import Backend
from agentbox.isolation.interpreters import Found
from agentbox.isolation.network import Network
from agentbox.isolation.selfcheck import Check, Directory, examine, output_of
from agentbox.policy.parser import parse
from agentbox.records import dataclass

# Names and addresses that are nobody's: nothing leaves this host.
_ALLOWED, _DENIED, _NOBODY = "allowed.agentbox.test", "denied.agentbox.test", "192.0.2.7"
_GUEST = f"""
import json, socket
def look_up(name):
    try:
        return socket.getaddrinfo(name, 443, socket.AF_INET)[0][4][0]
    except OSError as error:
        return repr(error)
def connect(host):
    try:
        with socket.create_connection((host, 443), 10) as sock:
            sock.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            return sock.recv(100).decode("latin-1")
    except OSError as error:
        return repr(error)
print(json.dumps([look_up({_ALLOWED!r}), look_up({_DENIED!r}), connect({_NOBODY!r})]))
"""


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The way out of a backend's boxes. `problem` and `fix` say why none can be made here; `notes` what this host does
    not give them."""

    backend: str
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    fix: str = ""

    @property
    def usable(self) -> bool:
        """Whether `net:` rules and allowlists work with this backend here."""
        return not self.problem and bool(self.checks) and all(check.passed for check in self.checks)


async def inspect_gateway(backend: Backend, python: Found | None, directory: Directory) -> GatewayReport:
    """Run the self-check in boxes that are attached to a network, then talk to a real gateway from one."""
    stock = AttachmentStock(0)
    notes: dict[str, None] = {}

    @contextlib.asynccontextmanager
    async def attached() -> AsyncIterator[Network]:
        async with _attachment(backend, stock) as (attachment, network):
            notes.update(dict.fromkeys(attachment.notes))
            yield network

    try:
        report = await examine(backend, python, directory, thorough=False, networks=attached)
        for requirement in report.requirements:
            if not requirement.met:
                return GatewayReport(backend.name, notes=tuple(notes), problem=requirement.detail, fix=requirement.fix)
        talk = await _talk(backend, python, directory, stock)
    except AgentboxError as error:
        return GatewayReport(backend.name, notes=tuple(notes), problem=error.message, fix=error.hint)
    finally:
        await stock.close()
    return GatewayReport(backend.name, (*report.checks, *talk), tuple(notes))


async def _talk(
    backend: Backend, python: Found | None, directory: Directory, attachments: AttachmentStock
) -> tuple[Check, ...]:
    """What a program in an attached box and its gateway see of each other."""
    told: list[EgressEvent] = []
    names = SyntheticNames()
    rules = EgressRules.of(parse(f"net: {_ALLOWED}:443", root="/"))
    with tempfile.NamedTemporaryFile("w", prefix="agentbox-doctor-") as hosts:
        # The gateway looks an allowed name up before it gives an address for it.
        hosts.write(f"{_NOBODY} {_ALLOWED}\n")
        hosts.flush()
        async with contextlib.AsyncExitStack() as stack:
            attachment, network = await stack.enter_async_context(_attachment(backend, attachments))
            upstream = Upstream(hosts_file=hosts.name)
            stack.push_async_callback(upstream.close)
            gateway = Gateway(rules, told.append, upstream, names=names)
            stack.push_async_callback(gateway.close)
            await gateway.serve(attachment, {}, {})
            output = await output_of(backend, python, directory, network, _GUEST)
    try:
        allowed, denied, answer = json.loads(output)
    except ValueError:
        detail = f"the program did not run: {output[-300:].decode(errors='replace')}"
        return (Check("a_program_reaches_the_gateway", "network", False, detail),)
    seen = {(event.op, event.host, event.allowed) for event in told}
    return (
        Check("an_allowed_name_means_the_gateway", "network", names.name_of(allowed) == _ALLOWED, allowed),
        Check("another_name_does_not_exist", "network", ("net.resolve", _DENIED, False) in seen, denied),
        Check("a_connection_meets_the_gateway", "network", ("net.connect", _NOBODY, False) in seen, answer),
    )


@contextlib.asynccontextmanager
async def _attachment(backend: Backend, stock: AttachmentStock) -> AsyncIterator[tuple[Attachment, Network]]:
    """A network for one box, and what serves it."""
    held = await backend.hold_network()
    try:
        attachment = await (stock.lease() if held is None else stock.fit_out(held.path, held.user_path or None))
        try:
            holder = held.holder if held is not None else ""
            yield (
                attachment,
                Network(attachment.namespace_fd, attachment.user_namespace_fd, GATEWAY_IPV4, holder=holder),
            )
        finally:
            attachment.close()
    finally:
        if held is not None:
            await held.close()
