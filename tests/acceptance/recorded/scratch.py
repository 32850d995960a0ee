# SPDX-License-Identifier: MIT
"""Temporary files and directories, by their names."""

import os
import tempfile

with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
    file.write("for a moment")
    file.flush()
    print(file.name, os.path.getsize(file.name))
with tempfile.TemporaryDirectory(prefix="work-") as directory:
    with open(os.path.join(directory, "inside"), "w") as file:
        file.write("inside")
    print(directory, os.listdir(directory))
descriptor, name = tempfile.mkstemp(dir="out", prefix="kept-")
os.write(descriptor, b"kept")
os.close(descriptor)
print(name.rpartition("/")[2], open(name).read())
os.remove(name)
with tempfile.SpooledTemporaryFile(max_size=10) as spooled:
    spooled.write(b"longer than ten bytes")
    spooled.seek(0)
    print(spooled.read())
print(tempfile.mktemp(), tempfile.gettempdir())
