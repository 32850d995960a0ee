# SPDX-License-Identifier: MIT
from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from agentbox.models import Limits, RequestedLimits
from agentbox.policy.ceiling import Ceiling, effective_limits

CEILING = Ceiling(default=Limits(30, 1024, 1.0, 256, 256, 1 << 20), maximum=Limits(300, 8192, 2.0, 4096, 4096, 1 << 20))


def test_a_request_without_limits_gets_the_defaults() -> None:
    assert effective_limits(RequestedLimits(), CEILING) == (CEILING.default, ())


def test_what_a_request_asks_below_the_ceiling_it_gets() -> None:
    asked = RequestedLimits(5, 64, 0.5, 16, 8, 2048)
    limits, warnings = effective_limits(asked, CEILING)
    assert dataclasses.astuple(limits) == dataclasses.astuple(asked)
    assert warnings == ()


def test_what_is_lowered_is_named_with_the_setting_that_did_it() -> None:
    limits, warnings = effective_limits(RequestedLimits(memory_mb=10_000), CEILING)
    assert limits.memory_mb == 8192
    assert warnings == ("limits.memory_mb: 10000 was lowered to this server's AGENTBOX_MAX_MEMORY_MB=8192",)


@given(st.builds(RequestedLimits, *[st.none() | st.integers(min_value=1, max_value=1 << 40) for _ in range(6)]))
def test_no_request_passes_the_ceiling(asked: RequestedLimits) -> None:
    limits, _ = effective_limits(asked, CEILING)
    assert all(
        got <= most for got, most in zip(dataclasses.astuple(limits), dataclasses.astuple(CEILING.maximum), strict=True)
    )
