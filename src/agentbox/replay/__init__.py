# SPDX-License-Identifier: MIT
"""What was recorded, held against what happens now. Pure: it reads no file and starts nothing."""
