# SPDX-License-Identifier: MIT
"""The guard's own fixtures, for attacks on it."""

from tests.unit.guest.conftest import host, node, python

__all__ = ["host", "node", "python"]
