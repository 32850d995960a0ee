# SPDX-License-Identifier: MIT
"""The agent in a durable box where the native one cannot run: the same frames (spec/agent), in the box's own Python.

This package is shown in the box as a directory of its own and imports nothing but the standard library and itself. It
follows isolation/native/agent.c part by part; what is not explained here is there.
"""
