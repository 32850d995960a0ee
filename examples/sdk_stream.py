# SPDX-License-Identifier: MIT
"""Output as it happens, then the result."""

from __future__ import annotations

import os

from agentbox.sdk.client import AgentboxClient

URL = os.environ.get("AGENTBOX_URL", "http://127.0.0.1:8080")
CODE = """
import sys, time
for number in range(3):
    print(f"line {number}")
    time.sleep(0.1)
print("done", file=sys.stderr)
"""

with AgentboxClient(URL) as client:
    for event in client.stream(CODE):
        if event.result is None:
            print(f"{event.kind}: {event.text.rstrip()}", flush=True)
        else:
            print("outcome:", event.result.outcome, "exit code:", event.result.exit_code)
