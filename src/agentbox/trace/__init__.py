# SPDX-License-Identifier: MIT
"""The trace: records, their canonical bytes, the hash chain, signed checkpoints, reading and verifying."""
