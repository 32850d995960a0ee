# SPDX-License-Identifier: MIT
"""Durable sandboxes: commands, their output, files, the shell tools for models, lifetimes."""
