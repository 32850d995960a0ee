# SPDX-License-Identifier: MIT
"""A filter for connections inside the interpreter, for the backend that has no wall. Code that means to passes it."""
