# SPDX-License-Identifier: MIT
"""What runs inside a box: standard library only."""
