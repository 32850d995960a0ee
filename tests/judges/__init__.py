# SPDX-License-Identifier: MIT
"""What others' conformance suites say of our sandboxes: `make judges`, with JUDGED=backend for one backend alone."""
