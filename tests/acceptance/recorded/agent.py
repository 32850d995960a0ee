# SPDX-License-Identifier: MIT
"""An agent with its own functions, errors included."""

import agentbox
from agentbox import client as box

text = box.read_text("data/notes.txt")
print(box.write_text("out/made/report.md", text.upper()), box.now(), box.random())
print(box.run(["echo", "from echo"]), box.run(["cat"], stdin="fed to it"))
attempts = {
    "denied": lambda: box.read_text("/etc/shadow"),
    "denied write": lambda: box.write_text("/etc/new", ""),
    "denied program": lambda: box.run(["ls"]),
    "denied address": lambda: box.get("http://example.org/"),
    "a file": lambda: box.get("file:///etc/hostname"),
    "missing": lambda: box.read_text("data/absent.txt"),
    "a directory": lambda: box.read_text("data"),
    "not text": lambda: box.read_text("data/picture.bin"),
    "failing": lambda: box.run(["sh", "-c", "echo out; echo err >&2; exit 3"]),
    "slow": lambda: box.run(["sleep", "30"], timeout_seconds=0.2),
    "no program": lambda: box.run(["no-such-program"]),
}
for name, attempt in attempts.items():
    try:
        print(name, attempt())
    except agentbox.PolicyViolation as error:
        print(name, "is denied:", error)
    except Exception as error:
        print(name, type(error).__name__, error)
print(open("out/made/report.md").read() == text.upper())
