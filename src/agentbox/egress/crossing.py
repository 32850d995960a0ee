# SPDX-License-Identifier: MIT
"""One connection of a guest on its way through the gateway: judged, looked at, passed on or refused."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from agentbox.egress import refusals
from agentbox.egress.conversation import Conversation, Refused
from agentbox.egress.events import EgressEvent
from agentbox.egress.http import BadRequest, RequestHead
from agentbox.egress.opening import Opening
from agentbox.egress.pipes import Room
from agentbox.egress.rules import EgressRules
from agentbox.egress.stream import Flow, Relay
from agentbox.egress.target import Denied, Reached, Target, denial_of
from agentbox.egress.tls import (
    ALERT_ACCESS_DENIED,
    ALERT_DECODE_ERROR,
    ALERT_UNRECOGNIZED_NAME,
    ClientHello,
    alert,
    begins_as_tls,
)
from agentbox.policy.hosts import normal_name, parse_address

HELLO_SECONDS = 10.0
HEAD_SECONDS = 60.0
# A client that is denied may say within this time what it speaks, to be answered in it.
DENIED_SECONDS = 1.0
# The same where the target is not there; shorter, as a client that waits for the server has no other sign.
FAILED_SECONDS = 0.1
LINGER_SECONDS = 2.0
MAX_LINGER_BYTES = 1 << 20


class Owner(Protocol):
    """What a crossing needs of its gateway."""

    rules: EgressRules

    def tell(self, event: EgressEvent) -> None:
        """Hand an event on."""

    def press(self, crossing: Crossing, seconds: float | None) -> None:
        """Call `late` of the crossing after so many seconds; None calls it off."""


Route = Callable[[], Awaitable[Reached]]


class Crossing(Relay):
    """A guest's connection and the one to its target."""

    __slots__ = (
        "_conversation", "_denial", "_dialing", "_failure", "_inner", "_lingering", "_opening", "_owner", "_pressed",
        "_reached", "target",
    )  # fmt: skip

    def __init__(
        self, room: Room, guest: socket.socket, target: Target, owner: Owner, on_closed: Callable[[Relay], None]
    ) -> None:
        super().__init__(room, guest, on_closed)
        self.target = target
        self._owner = owner
        self._conversation: Conversation | None = None
        self._denial: EgressEvent | None = None
        self._dialing: asyncio.Future[None] | None = None
        self._opening: Opening | None = None
        self._failure: str | None = None
        self._lingering = False
        self._pressed = False
        self._reached: Reached | None = None
        # What a proxy at the target was asked to connect to: a target within the target.
        self._inner: Target | None = None
        if target.port is not None:
            self._look()

    @property
    def connected(self) -> bool:
        """Whether there is, or was, a connection to the target."""
        return self._reached is not None

    def begin(self, route: Route | Reached) -> None:
        """Connect by the route, or go on with a connection that is made; look at what the client says meanwhile."""
        if isinstance(route, Reached):
            self._arrive(route)
            return
        self._dialing = asyncio.ensure_future(self._dial(route))
        self.up.settle()

    def deny(self, event: EgressEvent) -> None:
        """Tell of a denial, and refuse in the protocol that the client speaks, or turns out to speak."""
        self._owner.tell(event)
        self._denial = event
        if self.target.port is None:
            self.abort()
        elif self._conversation is not None:
            # Requests were held back for a connection that is not made.
            self.refuse(refusals.denied(event))
        elif self._opening is None:
            self.refuse(alert(ALERT_ACCESS_DENIED) if begins_as_tls(self.up.unsent) else None)
        else:
            self._press(DENIED_SECONDS)
            self.up.discard()
            self.up.settle()

    def recheck(self) -> None:
        """The rules were changed: end what they do not allow any more."""
        if self.closed or self._denial is not None:
            return
        rules, target = self._owner.rules, self.target
        if target.port is None:
            verdict = rules.unix(target.host, counted=False)
        else:
            host, address = (
                (target.host, None) if self._reached is None else (self._reached.host, self._reached.address)
            )
            verdict = rules.connect(host, target.port, address, counted=False)
            if verdict.allowed and self._inner is not None and self._inner.port is not None:
                target = self._inner
                verdict = rules.connect(self._inner.host, self._inner.port, counted=False)
        if not verdict.allowed:
            reason = f"the rules were changed while it was open: {verdict.reason}"
            self._owner.tell(denial_of(target, replace(verdict, reason=reason)))
            self.abort()

    def late(self) -> None:
        """A time that was given is over."""
        self._pressed = False
        conversation = self._conversation
        if self._lingering:
            # No reset: what was written is with the kernel, which goes on delivering it.
            self.close()
        elif self._closes:
            self.abort()
        elif conversation is not None and conversation.requests.within_head:
            self._complain("its head did not come in time")
            conversation.refuse(refusals.too_slow())
            self._look_after_conversation()
        elif conversation is None and self._opening is not None:
            self._on_malformed("its first message did not come in time", False)

    def finished_event(self) -> EgressEvent | None:
        """What is told when the connection is over; None when there was none."""
        reached = self._reached
        if reached is None:
            return None
        return EgressEvent(
            "net.close",
            self.target.host,
            True,
            self.target.port,
            reached.address,
            reached.verdict.rule,
            bytes_up=self.up.moved,
            bytes_down=self.down.moved,
        )

    def close(self) -> None:
        """Close both sockets and stop connecting."""
        if not self.closed:
            self._press(None)
            if self._dialing is not None:
                self._dialing.cancel()
        super().close()

    # Connecting

    async def _dial(self, route: Route) -> None:
        try:
            reached = await route()
        except Denied as denied:
            self._dialing = None
            self.deny(denied.event)
            return
        except (OSError, TimeoutError) as error:
            self._dialing = None
            self._unreachable(error)
            return
        except Exception:
            self.abort()
            raise
        self._dialing = None
        self._arrive(reached)

    def _arrive(self, reached: Reached) -> None:
        self._reached = reached
        target, verdict = self.target, reached.verdict
        self._owner.tell(
            EgressEvent(
                self._operation, target.host, True, target.port, reached.address, verdict.rule, reason=verdict.reason
            )
        )
        self.connect_to(reached.end)

    @property
    def _operation(self) -> str:
        return "net.unix" if self.target.port is None else "net.connect"

    def _unreachable(self, error: Exception) -> None:
        target = self.target
        if isinstance(error, OSError) and error.errno:
            # What asyncio makes of it names the address, which is nothing for a guest.
            reason = os.strerror(error.errno)
        else:
            reason = "it did not answer in time" if isinstance(error, TimeoutError) else str(error)
        told = f"it could not be reached: {reason}"
        self._owner.tell(EgressEvent(self._operation, target.host, True, target.port, reason=told))
        if self._opening is not None:
            self._failure = reason
            self._press(FAILED_SECONDS)
            self.up.discard()
            self.up.settle()
        elif self._conversation is not None and target.port is not None:
            self.refuse(refusals.unreachable(target.host, target.port, reason))
        else:
            self.abort()

    # Looking

    def _look(self) -> None:
        self._opening = self.up.inspector = Opening(self._on_tls, self._on_http, self._on_other, self._on_malformed)

    def _tunnel(self, data: bytes) -> bytes:
        self._opening = None
        self.up.inspector = None
        self._press(None)
        return data

    @property
    def _closes(self) -> bool:
        """Whether there will be no connection to the target, and only what the client speaks is open."""
        return self._denial is not None or self._failure is not None

    def _on_other(self, data: bytes) -> bytes:
        if self._closes:
            self.abort()
            return b""
        return self._tunnel(data)

    def _on_malformed(self, reason: str, is_tls: bool) -> bytes:
        if not self._closes:
            target = self._inner or self.target
            self._deny_within(EgressEvent("net.connect", target.host, False, target.port, reason=reason))
        return self.refuse(alert(ALERT_DECODE_ERROR) if is_tls else None)

    def _on_tls(self, hello: ClientHello, data: bytes) -> bytes:
        if self._denial is not None:
            return self.refuse(alert(ALERT_ACCESS_DENIED))
        if self._failure is not None:
            return self.refuse(None)
        denial = self._judge_name(hello)
        if denial is None:
            return self._tunnel(data)
        self._deny_within(denial)
        return self.refuse(alert(ALERT_UNRECOGNIZED_NAME))

    def _judge_name(self, hello: ClientHello) -> EgressEvent | None:
        """The denial of a server name that does not fit the target; without a name there is only the target."""
        target = self._inner or self.target
        if hello.server_name is None or target.port is None:
            return None
        address = parse_address(hello.server_name)
        name = normal_name(hello.server_name) if address is None else str(address)
        if name is not None and target.is_named(name):
            return None
        shown = name or hello.server_name
        verdict = self._owner.rules.connect(shown, target.port, target.address, counted=False)
        # An address has no name of its own, so any name that the rules allow there fits it.
        if verdict.allowed and target.address is not None:
            return None
        if not verdict.allowed:
            return denial_of(Target(shown, target.port), verdict)
        reason = f"the TLS client asks {target.host} for {shown}"
        return EgressEvent(
            "net.connect", shown, False, target.port, reason=reason, hint="connect to the name that TLS asks for"
        )

    def _on_http(self, data: bytes, forwarded: int) -> bytes:
        self._opening = None
        head_only = data.lstrip().startswith(b"HEAD ")
        if self._denial is not None:
            return self.refuse(refusals.denied(self._denial, head_only=head_only))
        if self._failure is not None and self.target.port is not None:
            host, port = self.target.host, self.target.port
            return self.refuse(refusals.unreachable(host, port, self._failure, head_only=head_only))
        conversation = self._conversation = Conversation(self._judge_request, self._complain, forwarded)
        self.up.inspector = conversation.requests
        self.down.inspector = conversation.answers
        return conversation.requests.feed(data)

    def _complain(self, reason: str) -> bytes:
        target = self._inner or self.target
        hint = refusals.PLAIN_REQUEST
        self._owner.tell(EgressEvent("net.request", target.host, False, target.port, reason=reason, hint=hint))
        return refusals.bad_request(reason)

    def _judge_request(self, request: RequestHead) -> None:
        target = self._inner or self.target
        if target.port is None:
            return
        host = target.host if request.host is None else request.host
        port = target.port if request.port is None else request.port
        event = EgressEvent("net.request", host, True, port, method=request.method, path=request.path or None)
        if not (target.is_named(host) and port == target.port):
            verdict = self._owner.rules.connect(host, port)
            event = replace(event, rule=verdict.rule, reason=verdict.reason)
            if not verdict.allowed:
                event = replace(event, allowed=False, rule_missing=verdict.rule_missing, hint=verdict.hint)
                self._owner.tell(event)
                raise Refused(refusals.denied(event, head_only=request.method == "HEAD"))
        if request.connect:
            if request.absolute:
                raise BadRequest("the target and Host name different hosts")
            address = parse_address(host)
            self._inner = Target(host, port, None if address is None else str(address))
        self._owner.tell(event)

    # While it goes on

    def progress(self) -> None:
        """Bytes of one direction were looked at: act on what that showed."""
        if self._conversation is not None:
            self._look_after_conversation()
            if self._conversation is not None:
                self._press(HEAD_SECONDS if self._conversation.requests.within_head else None)
        elif self._opening is not None and self._opening.holding and not self._closes:
            self._press(HELLO_SECONDS)

    def source_ended(self, flow: Flow) -> None:
        """A side will send nothing more."""
        if flow is self.down and self._conversation is not None and self._conversation.requests.waiting:
            # What the client waits for will not come.
            self._linger()
        elif flow is self.up and self._lingering and self.down.finished:
            self.close()

    def flow_finished(self) -> None:
        """One direction is closed."""
        if self._lingering and self.down.finished:
            if self.up.ended:
                self.close()
                return
            self._press(LINGER_SECONDS)
        super().flow_finished()

    def _look_after_conversation(self) -> None:
        conversation = self._conversation
        if conversation is None or self.closed:
            return
        if not conversation.requests.waiting and not self.up.reading:
            self.up.refeed()
        if conversation.refusal is not None:
            self.refuse(conversation.refusal)
        elif conversation.accepted:
            self._begin_tunnel(conversation)

    def _begin_tunnel(self, conversation: Conversation) -> None:
        rest = conversation.requests.rest()
        self._conversation = None
        self.down.inspector = self.up.inspector = None
        if self._inner is not None:
            self._look()
            rest = self._opening.feed(rest) if rest and self._opening is not None else rest
        self.up.put(rest)

    # Refusing

    def _deny_within(self, event: EgressEvent) -> None:
        self._owner.tell(event)
        self._denial = event

    def refuse(self, answer: bytes | None) -> bytes:
        """End the connection to the target; give the client an answer and time to read it, or a reset."""
        if answer is None or self.closed:
            self.abort()
            return b""
        self._conversation = None
        self._opening = None
        if self._dialing is not None:
            self._dialing.cancel()
            self._dialing = None
        self.drop_upstream()
        self.down.inspector = None
        self.down.put(answer)
        self.down.end()
        self._linger()
        return b""

    def _linger(self) -> None:
        """Read on for a while and forget it: closing now would reset what the client has not read yet."""
        if self.closed:
            return
        self._lingering = True
        self._conversation = None
        self.up.inspector = Discard(self)
        self.up.discard()
        # The time begins when everything is written: a slow reader has an answer to read first.
        self._press(None)
        self._press(LINGER_SECONDS if self.down.finished else None)
        self.up.settle()
        if self.up.ended and self.down.finished:
            self.close()

    def _press(self, seconds: float | None) -> None:
        """Be called `late` after so many seconds from the first call of this; None calls it off."""
        if self._pressed != (seconds is not None):
            self._pressed = not self._pressed
            self._owner.press(self, seconds)


class Discard:
    """Takes what comes and passes nothing on."""

    __slots__ = ("_crossing", "_left", "free", "waiting")

    def __init__(self, crossing: Crossing) -> None:
        self._crossing = crossing
        self._left = MAX_LINGER_BYTES
        self.free = 0
        self.waiting = False

    def feed(self, data: bytes) -> bytes:
        """Forget it; a client that does not stop is reset."""
        self._left -= len(data)
        if self._left < 0:
            self._crossing.abort()
        return b""

    def passed(self, size: int) -> None:
        """Nothing passes here."""
