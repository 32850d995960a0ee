# SPDX-License-Identifier: MIT
"""The Python client: a result, limits, and how a run ended."""

from __future__ import annotations

import os

from agentbox.sdk.client import AgentboxClient, AgentboxHTTPError

URL = os.environ.get("AGENTBOX_URL", "http://127.0.0.1:8080")

with AgentboxClient(URL) as client:
    answer = client.run("import sys; print('hello from', sys.version.split()[0])")
    print(answer.stdout, end="")
    print("exit code:", answer.exit_code, "outcome:", answer.outcome, "ok:", answer.ok)
    print("held by:", answer.enforcement)

    # What the code does wrong is a result, not an exception.
    answer = client.run("open('/etc/shadow')")
    print("reading /etc/shadow:", answer.stderr.strip().splitlines()[-1])

    answer = client.run("block = bytearray(500 << 20)\nfor i in range(0, len(block), 4096): block[i] = 1", memory_mb=64)
    print("500 MiB under a limit of 64:", answer.outcome)

    # A run that takes too long is HTTP 408; the exception holds what had happened until then.
    try:
        client.run("print('begun', flush=True)\nwhile True: pass", timeout_seconds=1)
    except AgentboxHTTPError as error:
        known = error.result or {}
        print("timed out:", error.status, known.get("outcome"), repr(known.get("stdout")))
