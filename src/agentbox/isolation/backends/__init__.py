# SPDX-License-Identifier: MIT
"""The isolation backends, by name in registry.BACKENDS."""
