# SPDX-License-Identifier: MIT
"""Every raw system call and kernel file; imports only errors."""
