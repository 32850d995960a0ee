# SPDX-License-Identifier: MIT
"""What was recorded, held against what happens now. It starts nothing, and reads nothing but traces."""
