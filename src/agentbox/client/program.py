# SPDX-License-Identifier: MIT
"""Programs that `agentbox.client.run` runs to their end."""

from __future__ import annotations

import os
import signal
import subprocess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def run(words: list[str], seconds: float | None, data: bytes | None) -> dict[str, Any]:
    """Exit code and output. Raises OSError, and TimeoutExpired when it was killed with what it started."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(data, seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        out, err = process.communicate()
        assert seconds is not None
        raise subprocess.TimeoutExpired(words, seconds, out, err) from None
    except BaseException:
        _kill(process)
        process.wait()
        raise
    return {
        "code": process.returncode,
        "stdout": out.decode("utf-8", "replace"),
        "stderr": err.decode("utf-8", "replace"),
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        return
