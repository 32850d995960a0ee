# SPDX-License-Identifier: MIT
"""The warm pool of the jail: boxes and interpreters that are ready before a run is asked for."""
