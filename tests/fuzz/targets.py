# SPDX-License-Identifier: MIT
"""Every target of `make fuzz`, one module each."""

from __future__ import annotations

from tests.fuzz import dns, dns_zone
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *dns.TARGETS,
    *dns_zone.TARGETS,
)
