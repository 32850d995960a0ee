# SPDX-License-Identifier: MIT
"""Dice, many of them, timed."""

import heapq
import itertools
import math
import random
import time


def inside(samples, source):
    return sum(source.random() ** 2 + source.random() ** 2 <= 1 for _ in range(samples))


began = time.process_time()
source = random.Random()
print(4 * inside(20_000, source) / 20_000, random.Random(7).random())
walk = list(itertools.accumulate(random.choice((-1, 1)) for _ in range(1000)))
print(min(walk), max(walk), math.isclose(sum(walk) / 1000, 0, abs_tol=100), heapq.nlargest(3, walk))
print(f"{time.process_time() - began:.9f}", time.thread_time() >= 0)
