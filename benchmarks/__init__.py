# SPDX-License-Identifier: MIT
"""Measurements; `make bench` runs them."""
