# SPDX-License-Identifier: MIT
"""Generated cases, on any machine: a claim about a result says nothing of the time that it takes on a busy one."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# As Hypothesis does by itself in continuous integration.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
if settings.get_current_profile_name() == "default":
    settings.load_profile("any machine")
