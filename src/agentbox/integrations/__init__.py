# SPDX-License-Identifier: MIT
"""Sandboxes as other systems want them. Each module needs the package that it is for."""
