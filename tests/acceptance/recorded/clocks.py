# SPDX-License-Identifier: MIT
"""What time it is, by every clock there is."""

import datetime
import time

start, began = time.perf_counter(), time.monotonic()
print("it is", datetime.datetime.now().isoformat(), "or", datetime.datetime.now(datetime.timezone.utc))
print("today is", datetime.date.today(), time.strftime("%A %H:%M:%S"), time.ctime())
print(time.time(), time.time_ns(), time.gmtime().tm_sec, time.localtime()[:6])
time.sleep(0.05)
print(f"took {time.perf_counter() - start:.9f} s, {time.monotonic() - began:.9f} s, {time.process_time():.9f} s")
deadline = time.time() + 0.02
rounds = 0
while time.time() < deadline:
    rounds += 1
print("looked at the clock", rounds, "times")
