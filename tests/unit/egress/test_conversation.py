# SPDX-License-Identifier: MIT
"""Requests and answers in step, without sockets."""

from __future__ import annotations

import pytest

from agentbox.egress.conversation import MAX_PIPELINED, UNLIMITED, Conversation, Refused
from agentbox.egress.http import RequestHead

GET = b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"
DENIED = b"GET / HTTP/1.1\r\nHost: denied.test\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: allowed.test\r\nUpgrade: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def conversation() -> Conversation:
    def judge(head: RequestHead) -> None:
        if head.host == "denied.test":
            raise Refused(b"403")

    return Conversation(judge, lambda reason: b"400 " + reason.encode())


def test_refusal_waits_for_the_answers_that_are_under_way() -> None:
    talk = conversation()
    assert talk.requests.feed(GET + DENIED + GET) == GET
    assert talk.requests.waiting
    assert talk.refusal is None
    talk.answers.feed(OK[:-1])
    assert talk.refusal is None
    talk.answers.feed(OK[-1:])
    assert talk.refusal == b"403"
    assert talk.requests.feed(GET) == b""


def test_refusal_cannot_follow_an_answer_without_an_end() -> None:
    talk = conversation()
    talk.requests.feed(GET + DENIED)
    talk.answers.feed(b"HTTP/1.0 200 OK\r\n\r\nbody")
    assert talk.refusal is None
    assert talk.requests.feed(GET) == b""


def test_client_waits_after_as_many_requests_as_may_be_under_way() -> None:
    talk = conversation()
    sent = talk.requests.feed(GET * (MAX_PIPELINED + 3))
    assert sent == GET * MAX_PIPELINED
    talk.answers.feed(OK)
    assert talk.requests.feed(b"") == GET


def test_upgrade_holds_everything_until_its_own_answer() -> None:
    talk = conversation()
    assert talk.requests.feed(GET + UPGRADE + DENIED) == GET + UPGRADE
    talk.answers.feed(OK)
    assert talk.requests.waiting
    talk.answers.feed(b"HTTP/1.1 101 Switching\r\n\r\nframes")
    assert talk.accepted
    assert talk.requests.rest() == DENIED


def test_declined_upgrade_goes_on_with_requests() -> None:
    talk = conversation()
    talk.requests.feed(UPGRADE + DENIED)
    talk.answers.feed(OK)
    assert not talk.accepted
    assert talk.requests.feed(b"") == b""
    assert talk.refusal == b"403"


def test_switch_that_nobody_asked_for_ends_inspection_of_answers_only() -> None:
    talk = conversation()
    talk.requests.feed(GET)
    talk.answers.feed(b"HTTP/1.1 101 Switching\r\n\r\n")
    assert not talk.accepted
    assert talk.answers.free == UNLIMITED
    assert talk.requests.feed(DENIED) == b""


def test_bodies_may_pass_unseen_and_are_counted() -> None:
    talk = conversation()
    talk.requests.feed(b"PUT / HTTP/1.1\r\nHost: allowed.test\r\nContent-Length: 10\r\n\r\n123")
    assert talk.requests.free == 7
    talk.requests.passed(7)
    assert talk.requests.free == 0
    assert talk.requests.feed(DENIED) == b""


def test_broken_body_is_answered_though_the_server_will_not() -> None:
    talk = conversation()
    talk.requests.feed(b"PUT / HTTP/1.1\r\nHost: allowed.test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert talk.refusal is not None
    assert talk.refusal.startswith(b"400 ")


def test_bytes_that_went_on_before_do_not_go_on_twice() -> None:
    talk = Conversation(lambda head: None, lambda reason: b"", forwarded=5)
    assert talk.requests.feed(GET[:20]) == b""
    assert talk.requests.feed(GET[20:] + GET) == GET[5:] + GET


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n"])
def test_interim_answers_answer_nothing(interim: bytes) -> None:
    talk = conversation()
    talk.requests.feed(GET + DENIED)
    talk.answers.feed(interim)
    assert talk.refusal is None
    talk.answers.feed(interim + OK)
    assert talk.refusal == b"403"
