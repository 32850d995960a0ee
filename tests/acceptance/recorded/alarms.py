# SPDX-License-Identifier: MIT
"""Signals, cleaning up at the end, and an exit code."""

import atexit
import os
import signal
import sys
import time


class TooLong(Exception):
    pass


def stop(number, frame):
    raise TooLong(signal.Signals(number).name)


atexit.register(lambda: print("cleaned up at", time.time()))
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    while True:
        time.sleep(1)
except TooLong as error:
    print("stopped by", error)
signal.signal(signal.SIGUSR1, lambda number, frame: print("told by", number))
os.kill(os.getpid(), signal.SIGUSR1)
print(os.environ.get("HOME") is not None, os.getcwd() == os.path.realpath("."))
print("giving up", file=sys.stderr)
sys.exit(3)
