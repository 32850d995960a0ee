# SPDX-License-Identifier: MIT
"""Entry of the launcher process: `python -I -S main.py FD`, FD being its end of the owner's socket."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Serve the owner."""
    # Run as a file by an isolated interpreter, so the package is not on its path yet.
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    sys.path.insert(0, package_root)
    from agentbox.isolation.launcher.serving import serve

    serve(int(sys.argv[1]))


if __name__ == "__main__":
    main()
