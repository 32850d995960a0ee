# SPDX-License-Identifier: MIT
"""Questions read and answers written, byte for byte."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbox.egress import dns
from agentbox.egress.dns import Answer, Code, ErrorInfo, ExtendedError, Query, Unusable
from tests.unit.egress.name_server import message, seen, wire

LABEL = st.binary(min_size=1, max_size=63)
NAME = st.lists(LABEL, max_size=4).map(tuple)


def _read(data: bytes) -> Query:
    query = dns.read_query(data)
    assert isinstance(query, Query)
    return query


@given(NAME, st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.none() | st.integers(0, 0xFFFF))
def test_every_question_of_any_bytes_is_read_as_it_is(
    labels: tuple[bytes, ...], qtype: int, ident: int, edns: int | None
) -> None:
    name = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    read = dns.read_query(message(name, qtype, ident=ident, edns=edns))
    if len(name) > 255:
        assert isinstance(read, Unusable)
        assert read.code == Code.FORMERR
        return
    assert isinstance(read, Query)
    assert (read.labels, read.qtype, read.qclass, read.id) == (labels, qtype, 1, ident)
    assert (read.edns.datagram_bytes if read.edns else None) == edns


@given(st.binary(max_size=600))
@settings(max_examples=300)
def test_no_message_of_any_bytes_is_read_with_an_exception(data: bytes) -> None:
    read = dns.read_query(data)
    if read is not None:
        dns.write_answer(read, Code.NXDOMAIN)


@given(NAME, NAME)
def test_two_names_that_differ_have_texts_that_differ(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> None:
    assert (dns.name_text(one) == dns.name_text(other)) == (one == other)


def test_text_of_a_name_hides_no_dot_no_zero_and_no_control_character() -> None:
    assert dns.name_text((b"a.b", b"allowed\0", b"x\x1b[m", b"\xfcber")) == r"a\046b.allowed\000.x\027\091m.\252ber"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(message("a.b", counts=(0, 0, 0)), Code.FORMERR, id="no question"),
        pytest.param(message("a.b", counts=(2, 0, 0)), Code.FORMERR, id="two questions"),
        pytest.param(message("a.b", counts=(1, 1, 0)), Code.FORMERR, id="an answer in a question"),
        pytest.param(message("a.b", counts=(1, 0, 1)), Code.FORMERR, id="an authority in a question"),
        pytest.param(message(b"\xc0\x0c"), Code.FORMERR, id="a pointer at itself"),
        pytest.param(message(b"\1a\xc0\x0c"), Code.FORMERR, id="a pointer backwards"),
        pytest.param(message(b"\xc0\0"), Code.FORMERR, id="a pointer into the header"),
        pytest.param(message(b"\xff\xff"), Code.FORMERR, id="a pointer beyond the end"),
        pytest.param(message(b"\x41a\0"), Code.FORMERR, id="an extended label"),
        pytest.param(message(b"\x81a\0"), Code.FORMERR, id="a reserved label"),
        pytest.param(message(b"\x05abc"), Code.FORMERR, id="a label longer than the message"),
        pytest.param(message((b"\x3f" + b"a" * 63) * 4 + b"\0"), Code.FORMERR, id="a name of 257 bytes"),
        pytest.param(message("a.b")[:-1], Code.FORMERR, id="no whole class"),
        pytest.param(message("a.b")[:14], Code.FORMERR, id="cut within the name"),
        pytest.param(message("a.b")[:12], Code.FORMERR, id="a header alone"),
        pytest.param(message("a.b") + b"x", Code.FORMERR, id="a byte too many"),
        pytest.param(message("a.b", edns=1232)[:-1], Code.FORMERR, id="cut within the OPT record"),
        pytest.param(message("a.b", edns=1, after=message("", edns=1)[17:]), Code.FORMERR, id="two OPT records"),
        pytest.param(message("a.b", after=b"\1a\0" + bytes((0, 41)) + bytes(8)), Code.FORMERR, id="an OPT with a name"),
        pytest.param(message("a.b") + b"\0" * 4096, Code.FORMERR, id="longer than any question"),
        pytest.param(message("a.b", edns=1232, edns_version=1), Code.BADVERS, id="a later EDNS"),
        *(
            pytest.param(message("a.b", flags=opcode << 11), Code.NOTIMP, id=f"opcode {opcode}")
            for opcode in range(1, 16)
        ),
    ],
)
def test_unusable_message_is_answered_with_its_code(data: bytes, code: Code) -> None:
    read = dns.read_query(data)
    assert isinstance(read, Unusable)
    assert read.code == code
    answer = dns.write_answer(read, read.code)
    assert seen(answer).code == code
    assert answer[:2] == data[:2]


@pytest.mark.parametrize("data", [b"", b"\0", message("a.b")[:11], message("a.b", flags=0x8100)])
def test_what_is_no_question_gets_no_answer(data: bytes) -> None:
    assert dns.read_query(data) is None


def test_longest_name_is_read_and_one_byte_more_is_refused() -> None:
    longest = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"a" * 61 + b"\0"
    assert len(longest) == 255
    assert isinstance(dns.read_query(message(longest)), Query)
    longer = (b"\x3f" + b"a" * 63) * 3 + b"\x3e" + b"a" * 62 + b"\0"
    assert isinstance(dns.read_query(message(longer)), Unusable)


def test_answer_repeats_the_question_in_its_case() -> None:
    read = _read(message("aLLoWeD.ExAmPlE"))
    answer = seen(dns.write_answer(read, Code.NOERROR, [Answer(dns.TYPE_A, 30, b"\xc6\x12\1\0")]))
    assert answer.question == wire("aLLoWeD.ExAmPlE") + b"\0\1\0\1"
    assert answer.addresses == ("198.18.1.0",)
    assert answer.ttls == (30,)


@pytest.mark.parametrize(("flags", "kept"), [(0x0100, 0x0100), (0x0000, 0), (0x0110, 0x0110), (0x0720, 0x0100)])
def test_answer_keeps_the_wish_for_recursion_and_claims_no_authority(flags: int, kept: int) -> None:
    answer = seen(dns.write_answer(_read(message("a.b", flags=flags)), Code.NOERROR))
    assert answer.flags & 0x0110 == kept & 0x0110
    assert not answer.flags & 0x0420


def test_extended_error_goes_only_to_who_speaks_edns() -> None:
    error = ExtendedError(ErrorInfo.BLOCKED, "why")
    assert seen(dns.write_answer(_read(message("a.b", edns=1232)), Code.NXDOMAIN, error=error)).extended == (15, "why")
    plain = seen(dns.write_answer(_read(message("a.b")), Code.NXDOMAIN, error=error))
    assert plain.extended is None
    assert plain.edns_bytes is None


def test_text_of_an_error_that_does_not_fit_is_left_out_before_anything_else() -> None:
    error = ExtendedError(ErrorInfo.BLOCKED, "x" * 600)
    small, large = (dns.write_answer(_read(message("a.b", edns=n)), Code.NXDOMAIN, error=error) for n in (100, 1232))
    assert len(small) <= 512
    assert seen(small).extended == (15, "")
    assert not seen(small).truncated
    assert seen(large).extended == (15, "x" * 600)


def test_answer_that_does_not_fit_is_cut_and_marked_and_fits_a_stream() -> None:
    read = _read(message("a.b"))
    answers = [Answer(dns.TYPE_A, 30, struct.pack(">I", number)) for number in range(64)]
    cut = dns.write_answer(read, Code.NOERROR, answers)
    assert seen(cut).truncated
    assert seen(cut).addresses == ()
    assert len(cut) <= 512
    whole = seen(dns.write_answer(read, Code.NOERROR, answers, max_bytes=dns.MAX_STREAM_BYTES))
    assert not whole.truncated
    assert len(whole.addresses) == 64


@pytest.mark.parametrize("name", ["a..b", ".a", "x" * 64, ".".join(["x" * 60] * 5)])
def test_name_that_no_message_can_hold_is_not_written(name: str) -> None:
    with pytest.raises(dns.WireError):
        dns.name_bytes(name)
