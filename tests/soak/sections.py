# SPDX-License-Identifier: MIT
"""All parts of the soak. To add one: a function of (Options, Found), and a row here."""

from __future__ import annotations

from tests.soak import sandboxes, served, states
from tests.soak.section import Section

SECTIONS = (
    Section("sandboxes", "commands in many sandboxes whose boxes are killed at random", sandboxes.work),
    Section("states", "sandboxes paused, restarted, forked, kept and restored at random", states.work),
    Section("served", "sandboxes behind a server that is killed at random, and so is their keeper", served.work),
)
