# SPDX-License-Identifier: MIT
"""An agent that fails in the end: its last traceback, which the interpreter writes by itself, has its lines."""

import json
import time
import traceback

for text in ('{"a": 1}', "no json"):
    try:
        print(json.loads(text))
    except ValueError:
        traceback.print_exc()


def fail():
    raise RuntimeError(f"given up at {time.time_ns()}")


fail()
