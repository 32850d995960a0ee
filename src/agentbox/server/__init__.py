# SPDX-License-Identifier: MIT
"""The HTTP edge."""
