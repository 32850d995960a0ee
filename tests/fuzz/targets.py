# SPDX-License-Identifier: MIT
"""Every target of `make fuzz`, one module each."""

from __future__ import annotations

from tests.fuzz import dns, dns_zone, gvisor_events, http, tls
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *dns.TARGETS,
    *http.TARGETS,
    *tls.TARGETS,
    *dns_zone.TARGETS,
    *gvisor_events.TARGETS,
)
