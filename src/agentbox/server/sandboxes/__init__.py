# SPDX-License-Identifier: MIT
"""Durable sandboxes behind HTTP: the keeper process that owns them, and the server's way to it."""
