# SPDX-License-Identifier: MIT
"""The guard of a Python interpreter: what the policy says of an effect, said where the program can understand it.

It is no wall: what it allows or misses, the kernel still refuses. It gives denials that name the rule's subject, the
hashes of what was read, observations, and the rules that count; and it tells the host. Everything here loads on
CPython 3.9 and later, before any code of the guest, with references of its own to all that it uses.
"""
