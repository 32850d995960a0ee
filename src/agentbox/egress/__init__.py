# SPDX-License-Identifier: MIT
"""The only way out of a box: names, connections and requests, judged and served on the host."""
