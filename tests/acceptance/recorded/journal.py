# SPDX-License-Identifier: MIT
"""Logging to the terminal and to a file that turns over."""

import logging
import logging.handlers
import sys
import time

logging.basicConfig(
    level=logging.DEBUG,
    format="%(asctime)s %(relativeCreated)d %(levelname)s %(threadName)s %(message)s",
    handlers=[
        logging.StreamHandler(sys.stdout),
        logging.handlers.RotatingFileHandler("out/journal.log", maxBytes=400, backupCount=2),
    ],
)
journal = logging.getLogger("agent")
for number in range(8):
    journal.info("step %d", number)
    time.sleep(0.001)
try:
    int("no number")
except ValueError:
    journal.exception("it failed")
logging.shutdown()
print(len(open("out/journal.log").read()) > 0)
