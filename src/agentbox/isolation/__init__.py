# SPDX-License-Identifier: MIT
"""Backends, host probe, launch plan, launcher, self-check. Handed a Confinement, never a policy."""
