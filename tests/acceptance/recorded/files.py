# SPDX-License-Identifier: MIT
"""A project's files: read, written, appended to, renamed, copied, removed."""

import glob
import os
import shutil
from pathlib import Path

out = Path("out")
notes = Path("data/notes.txt").read_text(encoding="utf-8")
(out / "parts").mkdir(exist_ok=True)
for number, line in enumerate(notes.splitlines()):
    (out / "parts" / f"{number}.txt").write_text(line.title() + "\n")
with open(out / "log.txt", "a") as log:
    log.write("one line more\n")
with open(out / "binary.bin", "w+b") as file:
    file.write(bytes(range(256)) * 40)
    file.seek(1000)
    print(file.read(8).hex())
os.rename(out / "parts" / "0.txt", out / "parts" / "first.txt")
shutil.copy(out / "parts" / "first.txt", out / "copy.txt")
shutil.copytree(out / "parts", out / "again", dirs_exist_ok=True)
os.remove(out / "copy.txt")
print(sorted(glob.glob("out/**/*.txt", recursive=True)), os.path.getsize(out / "binary.bin"))
print([(entry.name, entry.is_file()) for entry in os.scandir(out)], list(os.walk("out/parts")))
try:
    open("data/absent.txt")
except FileNotFoundError as error:
    print(error)
shutil.rmtree(out / "again")
