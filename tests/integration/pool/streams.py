# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""What goes through the three standard streams."""

from __future__ import annotations

import base64

from tests.integration.pool.case import Case, table

BIG = "x" * 60 + "\n"

STREAMS = table(
    text_without_newline="print('a', end='')\n",
    both_streams="import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stderr.write('no newline')\n",
    huge_output="for i in range(20000): print(i, 'x' * 40)\n",
    one_huge_write="print('y' * 900000)\n",
    output_over_the_cap=Case("print('z' * 100000)\n", {"limits": {"max_output_bytes": 2000}}),
    binary_output="import sys\nsys.stdout.buffer.write(bytes(range(256)))\n",
    descriptor_writes_between_prints="import os\nprint('a')\nos.write(1, b'b\\n')\nprint('c', flush=True)\nos.write(1, b'd\\n')\nos.write(2, b'e\\n')\n",
    output_of_children_between_prints="import subprocess\nprint('a')\nsubprocess.run(['echo', 'b'])\nprint('c', flush=True)\nsubprocess.run('echo d; echo e >&2', shell=True)\n",
    stdout_closed="import sys\nprint('a')\nsys.stdout.close()\n",
    print_after_close="import sys\nsys.stdout.close()\nprint('a')\n",
    stdout_descriptor_closed="import os\nprint('a')\nos.close(1)\n",
    stdout_descriptor_closed_when_flushed="import os\nprint('a', flush=True)\nos.close(1)\n",
    both_descriptors_closed="import os\nprint('a')\nos.close(1); os.close(2)\n",
    stderr_descriptor_closed="import os\nos.close(2)\n1/0\n",
    stdout_that_is_none="import sys\nprint('a')\nsys.stdout = None\nprint('b')\n",
    stdout_deleted="import sys\nprint('a')\ndel sys.stdout\nprint('b')\n",
    stdout_replaced="import io, sys\nprint('a')\nsys.stdout = io.StringIO()\nprint('b')\nsys.__stdout__.write('c')\n",
    stdout_whose_flush_fails="import sys\nclass S:\n    def write(self, t): pass\n    def flush(self): raise ValueError('flush')\n    closed = False\nsys.stdout = S()\n",
    stdout_wrapped_anew="import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='latin-1')\nprint('\\xe9')\n",
    stdout_reconfigured="import sys\nsys.stdout.reconfigure(encoding='utf-16')\nprint('a')\n",
    stdout_opened_again="open('/dev/stdout', 'w').write('a\\n')\nopen('/dev/stderr', 'w').write('b\\n')\nprint('c')\n",
    stdout_into_a_file="import os\nfd = os.open('o', os.O_CREAT | os.O_RDWR)\nos.dup2(fd, 1)\nprint('in the file', flush=True)\nos.write(2, open('o', 'rb').read())\n",
    redirected="import contextlib, io\ns = io.StringIO()\nwith contextlib.redirect_stdout(s):\n    print('x')\nprint(repr(s.getvalue()))\n",
    text_that_cannot_be_encoded="print('\\udcff')\n",
    surrogate_on_stderr="import sys\nprint('\\udcff', file=sys.stderr)\n",
    unicode_output="print('\\u20ac \\U0001f600 \\u4f60')\n",
    qualities_of_the_streams="""
import sys
for s in (sys.stdin, sys.stdout, sys.stderr):
    print(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), s.fileno(), s.closed,
          s.seekable(), type(s.buffer).__name__, s.newlines, repr(s))
print(sys.__stdout__ is sys.stdout, sys.__stdin__ is sys.stdin, sys.__stderr__ is sys.stderr)
""",
    stdin_empty="import sys\nprint(repr(sys.stdin.read()))\n",
    stdin_text=Case("import sys\nprint(repr(sys.stdin.read()))\n", {"stdin": "a\nb\r\nc \u20ac"}),
    stdin_lines=Case(
        "import sys\nfor line in sys.stdin: print(repr(line))\nprint(sys.stdin.newlines)\n", {"stdin": "a\r\nb\nc"}
    ),
    stdin_binary=Case(
        "import sys\nprint(sys.stdin.buffer.read())\n",
        {"stdin": {"base64": base64.b64encode(bytes(range(256))).decode()}},
    ),
    stdin_not_utf8=Case(
        "import sys\nprint(ascii(sys.stdin.read()))\n", {"stdin": {"base64": base64.b64encode(b"\xff\xfe").decode()}}
    ),
    stdin_big=Case("import sys\nprint(len(sys.stdin.read()))\n", {"stdin": BIG * 20000}),
    input_function=Case("a = input('prompt> ')\nb = input()\nprint(a, b)\ninput()\n", {"stdin": "first\nsecond"}),
    input_at_the_end="input('? ')\n",
    stdin_half_read=Case(
        "import sys, subprocess\nprint(sys.stdin.readline())\nsubprocess.run(['cat'])\n", {"stdin": "a\nb\n"}
    ),
    stdin_by_descriptor=Case(
        "import os\nprint(os.read(0, 3), os.read(0, 99), os.read(0, 9), os.lseek(0, 0, 1))\n", {"stdin": "abcdef"}
    ),
    stdin_opened_again=Case("print(open(0).read(), open('/dev/stdin').read())\n", {"stdin": "abc"}),
    stdin_cannot_be_written=Case(
        "import os\nfor flags in (os.O_WRONLY, os.O_RDWR):\n    try:\n        print(os.write(os.open('/dev/stdin', flags), b'x'))\n"
        "    except OSError as error:\n        print(error)\n",
        {"stdin": "abc"},
    ),
    stdin_inherited=Case(
        "import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)\n", {"stdin": "abc"}
    ),
    stdin_in_a_fork=Case(
        "import os, sys\nif os.fork() == 0:\n    print(sys.stdin.read()); sys.exit()\nos.wait()\n", {"stdin": "abc"}
    ),
    stdin_closed="import sys\nsys.stdin.close()\ntry:\n    input()\nexcept ValueError as e: print(e)\n",
    stdin_that_is_none="import sys\nsys.stdin = None\ntry:\n    input()\nexcept RuntimeError as e: print(e)\n",
    print_to_a_broken_pipe="""
import os, sys
r, w = os.pipe()
os.close(r)
os.dup2(w, 1)
print("a")
""",
    print_to_a_full_disk="import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('a')\n",
    fileinput_module=Case("import fileinput\nfor line in fileinput.input(): print(repr(line))\n", {"stdin": "a\nb\n"}),
    fifo_or_file="import os, stat\nprint([stat.S_IFMT(os.fstat(n).st_mode) for n in range(3)])\n",
    kind_of_a_given_stdin=Case(
        "import os, stat\nm = os.fstat(0)\nprint(stat.S_IFMT(m.st_mode), m.st_size)\n", {"stdin": "abc"}
    ),
    logging_to_stderr="import logging\nlogging.warning('careful')\nlogging.getLogger('x').error('bad')\n",
    progress_with_carriage_returns="for i in range(3): print(i, end='\\r')\n",
)
