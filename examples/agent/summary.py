# SPDX-License-Identifier: MIT
"""An agent that does its work, and then tries what its policy does not allow.

cd examples/agent && agentbox run -- python3 summary.py
"""

import os
import subprocess
from pathlib import Path

words = Path("data/notes.txt").read_text().split()
Path("out").mkdir(exist_ok=True)
Path("out/summary.txt").write_text(f"{len(words)} words, the longest is {max(words, key=len)}\n")
print("wrote", Path("out/summary.txt").read_text(), end="")
print(subprocess.run(["echo", "hello", os.environ.get("AGENT_NAME", "nobody")], capture_output=True, text=True).stdout)

for attempt, action in {
    "read /etc/passwd": lambda: Path("/etc/passwd").read_text(),
    "write ./data": lambda: Path("data/notes.txt").write_text("changed"),
    "run another program": lambda: subprocess.run(["ls", "/"], check=True),
    "run the allowed one otherwise": lambda: subprocess.run(["echo", "goodbye"], check=True),
    "reach the network": lambda: __import__("socket").create_connection(("192.0.2.1", 80), 1),
}.items():
    try:
        action()
        print("NOT BLOCKED:", attempt)
    except (OSError, subprocess.SubprocessError) as error:
        print("blocked:", attempt, f"({error})")
