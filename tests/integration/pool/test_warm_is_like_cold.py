# SPDX-License-Identifier: MIT
"""A run in a warm interpreter does what `python main.py` in a new box does: each program runs both ways."""

from __future__ import annotations

import re

import pytest

from tests.integration.pool.case import Case
from tests.integration.pool.conftest import Run
from tests.integration.pool.endings import AT_EXIT, EXCEPTIONS, EXITS
from tests.integration.pool.main_module import MAIN
from tests.integration.pool.streams import STREAMS
from tests.integration.pool.surroundings import PROCESSES, STATE

SAME = ("stdout", "stderr", "stdout_base64", "stderr_base64", "exit_code", "signal", "outcome", "oom_killed", "files")
_PLACES = re.compile(r"0x[0-9a-f]{6,}|(?<=started )\d{9,}")
CASES = {**EXCEPTIONS, **EXITS, **AT_EXIT, **STREAMS, **MAIN, **PROCESSES, **STATE}


def told(result: dict[str, object]) -> dict[str, object]:
    """What is compared of a result, without the addresses of objects and threads."""
    return {key: _PLACES.sub("(place)", one) if isinstance(one := result[key], str) else one for key in SAME}


@pytest.mark.parametrize("name", CASES)
def test_program_cannot_tell_from_its_run(name: str, warm: Run, cold: Run) -> None:
    case: Case = CASES[name]
    expected, found = cold(case.code, **case.more), warm(case.code, **case.more)
    assert expected["timings"]["start"] == "cold"
    assert found["timings"]["start"] in case.start
    assert told(found) == told(expected)
