# SPDX-License-Identifier: MIT
"""An agent that works with the functions for agents. Each call is recorded, and a replay gives the same answers.

cd examples/agent && agentbox run -- python3 report.py && agentbox replay
"""

import agentbox
from agentbox import client as box

words = box.read_text("data/notes.txt").split()
greeting = box.run(["echo", "hello", "agent"])["stdout"].strip()
report = f"{greeting}: {len(words)} words at {box.now():.3f}, ticket {int(box.random() * 10**6):06}\n"
box.write_text("out/report.md", report)
print(report, end="")

for attempt in (
    lambda: box.read_text("/etc/passwd"),
    lambda: box.write_text("data/notes.txt", "changed"),
    lambda: box.run(["ls", "/"]),
    lambda: box.get("https://example.com/"),
):
    try:
        print("NOT BLOCKED:", attempt())
    except agentbox.PolicyViolation as error:
        print("blocked:", error)
