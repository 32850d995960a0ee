# SPDX-License-Identifier: MIT
"""Words of a text, counted and laid out."""

import argparse
import collections
import re
import sys
import textwrap

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("file")
arguments.add_argument("--top", type=int, default=3)
given = arguments.parse_args(sys.argv[1:] or ["data/notes.txt", "--top", "4"])
with open(given.file, encoding="utf-8") as file:
    text = file.read()
words = re.findall(r"\w+", text.lower())
print("\n".join(f"{count:>3} {word}" for word, count in collections.Counter(words).most_common(given.top)))
print(textwrap.indent(textwrap.fill(text, 30), "> "))
print("warning: short text", file=sys.stderr)
with open("out/words.txt", "w") as file:
    print(*sorted(set(words)), sep="\n", file=file)
