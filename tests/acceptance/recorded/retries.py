# SPDX-License-Identifier: MIT
"""Trying again later, each time a little later than the last."""

import random
import sched
import time


def unreliable():
    if random.random() < 0.7:
        raise ConnectionError("not this time")
    return "done"


began = time.perf_counter()
for attempt in range(30):
    try:
        print(unreliable(), "at attempt", attempt)
        break
    except ConnectionError as error:
        delay = 0.001 * 1.3**attempt + random.uniform(0, 0.001)
        print(f"{error}: {delay:.6f} s")
        time.sleep(delay)
print(f"{time.perf_counter() - began:.6f} s")
schedule = sched.scheduler(time.monotonic, time.sleep)
for number in range(3):
    schedule.enter(0.01 * (3 - number), 1, lambda number=number: print("event", number, time.monotonic()))
schedule.run()
