# SPDX-License-Identifier: MIT
"""Rules and ceilings, pure: request and ceiling in, effective limits and confinement out."""
