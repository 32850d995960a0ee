# SPDX-License-Identifier: MIT
"""Archives, with the time in them."""

import gzip
import hashlib
import io
import tarfile
import time
import zipfile

with open("data/notes.txt", "rb") as file:
    notes = file.read()
with zipfile.ZipFile("out/notes.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("notes.txt", notes)
    archive.writestr("made.txt", time.ctime())
with gzip.open("out/notes.gz", "wb") as packed:
    packed.write(notes * 10)
with tarfile.open("out/notes.tar.gz", "w:gz") as archive:
    facts = tarfile.TarInfo("notes.txt")
    facts.size, facts.mtime = len(notes), int(time.time())
    archive.addfile(facts, io.BytesIO(notes))
with zipfile.ZipFile("out/notes.zip") as archive:
    print([(entry.filename, entry.date_time) for entry in archive.infolist()], archive.read("made.txt"))
for name in ("out/notes.zip", "out/notes.gz", "out/notes.tar.gz"):
    with open(name, "rb") as file:
        print(name, hashlib.sha256(file.read()).hexdigest())
