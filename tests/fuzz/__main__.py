# SPDX-License-Identifier: MIT
"""`python -m tests.fuzz`."""

from __future__ import annotations

import sys

from tests.fuzz.driver import main
from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    sys.exit(main(TARGETS, sys.argv[1:]))
