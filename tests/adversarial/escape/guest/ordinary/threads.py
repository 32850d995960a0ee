# SPDX-License-Identifier: MIT
import threading

barrier = threading.Barrier(16)
seen = []


def meet():
    barrier.wait(20)
    seen.append(threading.get_native_id())


threads = [threading.Thread(target=meet) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(set(seen)) == 16
print("works")
