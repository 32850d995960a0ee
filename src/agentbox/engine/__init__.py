# SPDX-License-Identifier: MIT
"""The walk: runner, supervisor."""
