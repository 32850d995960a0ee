# SPDX-License-Identifier: MIT
"""The Python client edge."""
