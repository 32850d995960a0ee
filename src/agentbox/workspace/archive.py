# SPDX-License-Identifier: MIT
"""Archives of a workspace: `.tar.gz` files, one gzip member, POSIX tar with pax records.

Decisions, and why:

* No rule is left to `tarfile`, whose filters have been passed by hard links to links and by links that lead elsewhere
  once others exist. Headers have one reader, `tar_format`, which refuses what two readers could understand differently.
* **Names** are bytes, kept exactly. Refused: absolute, empty, '.', '..' and over-long parts, NUL, over 64 levels. A
  backslash is a character like others. One leading './' is accepted. Twice the same name, or a file where a directory
  is needed, is refused.
* **Symbolic links** are stored as text and never followed. While an archive is read they are held back until every
  file is written and the archive is verified to its end, so that nothing can be written through one in any order, and
  where each leads can be worked out with all of them known (`links`). Kept: links that stay inside, by a relative path
  or as /work, where a workspace is in a box; and those below /usr, /bin or /lib, which every box shows and virtual
  environments need. A link that leads elsewhere, directly or through others, is left out with a warning: a guest may
  make it, so it must not make a snapshot unreadable, but the tree may lie on the host, where a person could follow it.
* **Hard links** are made only to a file that the same archive brought before.
* Devices, FIFOs and sockets are left out when writing and refused when reading; setuid and setgid bits are dropped.
* Sizes and entries are counted before a byte is compressed or written. A run of zeros becomes a hole, so a sparse file
  costs no disk when it comes back; its apparent size counts.
* What goes wrong in the middle of reading leaves a partial tree, which the caller must throw away.
"""

from agentbox.workspace.archive_reader import read_archive
from agentbox.workspace.archive_writer import MAX_ENTRIES, ArchiveSummary, write_archive

__all__ = ["MAX_ENTRIES", "ArchiveSummary", "read_archive", "write_archive"]
