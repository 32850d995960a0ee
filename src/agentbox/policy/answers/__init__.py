# SPDX-License-Identifier: MIT
"""One file for each kind of thing that a policy is asked about."""
