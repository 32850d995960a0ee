# SPDX-License-Identifier: MIT
"""Working directories, snapshots and archives; the host never follows a guest's link."""
