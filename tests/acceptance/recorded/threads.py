# SPDX-License-Identifier: MIT
"""Threads with a queue, an event, a timer and waits."""

import queue
import random
import threading
import time

todo: queue.Queue = queue.Queue()
done = {}
lock = threading.Lock()


def work(number):
    time.sleep(random.random() / 100)
    while True:
        item = todo.get()
        if item is None:
            return
        with lock:
            done[item] = item * item


def clock(number):
    began = time.monotonic()
    token = random.getrandbits(32)
    with lock:
        done[f"clock {number}"] = (began, token)


workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
for item in range(40):
    todo.put(item)
for _ in workers:
    todo.put(None)
clocks = [threading.Thread(target=clock, args=(number,)) for number in range(3)]
for thread in clocks:
    thread.start()
for thread in workers + clocks:
    thread.join()
print(sorted(done.items(), key=str))
ready = threading.Event()
threading.Timer(0.05, ready.set).start()
print(ready.wait(5), ready.wait(0.01))
try:
    queue.Queue().get(timeout=0.05)
except queue.Empty:
    print("nothing came")
