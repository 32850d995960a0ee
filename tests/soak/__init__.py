# SPDX-License-Identifier: MIT
"""Long mixtures of what is done to us and against us: nothing may get lost, nothing may be left. See __main__."""
