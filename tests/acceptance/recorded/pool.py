# SPDX-License-Identifier: MIT
"""A pool of threads that reads files and looks at the clock."""

import concurrent.futures
import random
import time


def measure(number):
    time.sleep(random.random() / 100)
    with open("data/notes.txt") as file:
        size = len(file.read())
    return number, size, time.time(), random.random()


with concurrent.futures.ThreadPoolExecutor(3) as pool:
    for found in pool.map(measure, range(6)):
        print(found)
    futures = [pool.submit(measure, number) for number in range(6, 12)]
    print(sorted(future.result() for future in concurrent.futures.as_completed(futures)))
    failing = pool.submit(lambda: 1 / 0)
    print(repr(failing.exception()))
