# SPDX-License-Identifier: MIT
"""Processes of its own: fork, a pool, a queue between them."""

import multiprocessing
import os
import random
import time


def square(number):
    return number, number * number


def report(answers):
    answers.put((random.random() < 2, time.time() > 0, os.getpid() != os.getppid()))


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        print(pool.map(square, range(6)))
    answers = context.Queue()
    process = context.Process(target=report, args=(answers,))
    process.start()
    print(answers.get())
    process.join()
    print(process.exitcode)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, f"{random.random()} {time.time()}".encode())
        os._exit(7)
    os.close(writing)
    print(os.read(reading, 100).decode(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
