# SPDX-License-Identifier: MIT
"""The way out of one box: an attachment from the stock, and the gateway that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbox.egress.attachment import Attachment
from agentbox.egress.events import EgressEvent, OnEvent
from agentbox.egress.gateway import Gateway
from agentbox.egress.names import GATEWAY_IPV4
from agentbox.egress.pipes import Pipes
from agentbox.egress.shares import Budget
from agentbox.egress.stock import DEFAULT_SIZE, AttachmentStock
from agentbox.egress.upstream import Upstream
from agentbox.errors import InvalidRequestError, IsolationError
from agentbox.isolation.network import Network
from agentbox.models import Denial, HostTraffic, Layer

STOCKED = DEFAULT_SIZE

if TYPE_CHECKING:
    from agentbox.egress.rules import EgressRules
    from agentbox.isolation.network import HeldNetwork


class Egress:
    """What all boxes of one process share: attachments in stock, and the resolver that the gateways ask. A WayOutMaker
    for a warm pool."""

    name_server = GATEWAY_IPV4

    def __init__(self, dns_upstream: str | None = None, *, stocked: int = 0, boxes: int = 1) -> None:
        """`dns_upstream` is a server `IP:port`, None the system's resolver; `stocked` attachments are kept ready, and
        `boxes` may have a way out at a time."""
        self._stock = AttachmentStock(stocked)
        self._upstream = Upstream(dns_upstream)
        self._filling: asyncio.Task[None] | None = None
        self._pipes = Pipes()
        self._budget = Budget.of_this_process(boxes)

    def fill(self) -> None:
        """Begin to make the stock. A host that cannot is found out by the first box that needs one."""
        self._filling = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        with contextlib.suppress(IsolationError):
            await self._stock.fill()

    async def open(
        self,
        rules: EgressRules,
        on_event: OnEvent,
        sockets: Sequence[str] = (),
        held: HeldNetwork | None = None,
    ) -> WayOut:
        """A way out for one box, with the UNIX sockets that rules name and these; in a namespace that is `held` for it,
        which goes with the way out. Raises IsolationError when this host cannot make one."""
        try:
            if held is None:
                attachment = await self._stock.lease()
            elif isinstance(held.fitted, Attachment):
                attachment, held.fitted = held.fitted, None
            else:
                attachment = await self.fit_out(held)
        except BaseException:
            if held is not None:
                await held.close()
            raise
        try:
            ports = await attachment.open_loopback_ports(rules.loopback_ports)
            share = self._budget.share()
            gateway = Gateway(rules, on_event, self._upstream, pipes=self._pipes, share=share)
            return WayOut(attachment, ports, gateway, (*rules.unix_paths, *sockets), held)
        except BaseException:
            attachment.close()
            if held is not None:
                await held.close()
            raise

    async def fit_out(self, held: HeldNetwork) -> Attachment:
        """See WayOutMaker."""
        return await self._stock.fit_out(held.path, held.user_path or None)

    async def close(self) -> None:
        """Give up the stock."""
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)
        await self._stock.close()
        await self._upstream.close()
        self._pipes.close()


class WayOut:
    """Serves one box from `serve` to `close`."""

    def __init__(
        self,
        attachment: Attachment,
        ports: dict[int, list[socket.socket]],
        gateway: Gateway,
        unix_paths: Sequence[str],
        held: HeldNetwork | None = None,
    ) -> None:
        self._attachment = attachment
        self._ports = ports
        self._gateway = gateway
        self._held = held
        self._closed = False
        self._serving = False
        self._replacing = asyncio.Lock()
        self.unix_paths = tuple(dict.fromkeys(unix_paths))
        self.notes = attachment.notes

    @property
    def network(self) -> Network:
        """What the backend needs to put its box there."""
        attachment, holder = self._attachment, self._held.holder if self._held is not None else ""
        return Network(attachment.namespace_fd, attachment.user_namespace_fd, GATEWAY_IPV4, self.unix_paths, holder)

    async def serve(self, unix_listeners: Mapping[str, socket.socket]) -> None:
        """Begin to serve; the listeners are those that the box made at `unix_paths`."""
        self._serving = True
        await self._gateway.serve(self._attachment, self._ports, dict(unix_listeners))

    async def replace(self, rules: EgressRules) -> None:
        """Other rules from now on; connections that they do not allow are ended. A port of the loopback that no rule
        named before leads out too, from now on.

        Raises InvalidRequestError for a UNIX socket that no rule named when the box was built, since nothing can be put
        into a box that runs, and IsolationError where the box has a server at such a port; nothing has changed then.
        """
        async with self._replacing:
            unknown = [path for path in rules.unix_paths if path not in self.unix_paths]
            if unknown:
                raise InvalidRequestError(
                    f"unix:{unknown[0]} cannot be opened to a box that runs: its sockets are made when it is built",
                    hint="name every UNIX socket in the rules that the box begins with",
                )
            opened = await self._attachment.open_loopback_ports(rules.loopback_ports - self._ports.keys())
            if self._closed:
                _close(opened)
                return
            self._ports.update(opened)
            self._gateway.replace(rules)
            if self._serving:
                self._gateway.listen((), opened, {})

    def traffic(self) -> dict[str, HostTraffic]:
        """Connections and bytes by host so far."""
        return {
            host: HostTraffic(seen.connections, seen.bytes_up, seen.bytes_down)
            for host, seen in self._gateway.counters.items()
        }

    async def close(self) -> None:
        """End every connection; what was counted is told by then. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._gateway.close()
        finally:
            _close(self._ports)
            self._attachment.close()
            if self._held is not None:
                await self._held.close()


def _close(ports: Mapping[int, Sequence[socket.socket]]) -> None:
    for listener in (listener for listeners in ports.values() for listener in listeners):
        listener.close()


def record_of(event: EgressEvent) -> tuple[str, str, dict[str, Any]]:
    """Kind, operation and arguments of an event's record in a trace."""
    shown = {
        "host": event.host,
        "port": event.port,
        "address": event.address,
        "rule": event.rule,
        "method": event.method,
        "path": event.path,
        "bytes_up": event.bytes_up or None,
        "bytes_down": event.bytes_down or None,
        "count": event.count if event.count != 1 else None,
    }
    args = {name: value for name, value in shown.items() if value is not None}
    if event.allowed:
        return "observe", event.op, args
    told = {"effect": event.op, "target": target_of(event), "enforced": True, "reason": event.reason}
    return "deny", "net", {**args, **event.refusal(), **told}


def denial_of(event: EgressEvent, index: int) -> Denial:
    """A denial as the result shows it; `index` is its record."""
    return Denial(
        layer=Layer.GATEWAY,
        effect="net",
        target=target_of(event),
        reason=event.reason,
        trace_index=index,
        rule=event.rule,
        rule_missing=event.rule_missing,
        hint=event.hint,
    )


def target_of(event: EgressEvent) -> str:
    """What was asked for, as a rule would name it."""
    host = f"[{event.host}]" if ":" in event.host and event.port is not None else event.host
    return host if event.port is None else f"{host}:{event.port}"
