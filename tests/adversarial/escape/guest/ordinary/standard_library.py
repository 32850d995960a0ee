# SPDX-License-Identifier: MIT
import ctypes
import datetime
import decimal
import getpass
import grp
import hashlib
import json
import lzma
import mmap
import os
import pathlib
import platform
import pty
import pwd
import secrets
import shutil
import signal
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
import zoneinfo

with sqlite3.connect("data.db") as database:
    database.execute("pragma journal_mode=wal")
    database.execute("create table t (x)")
    database.executemany("insert into t values (?)", [(n,) for n in range(1000)])
    assert database.execute("select sum(x) from t").fetchone() == (499500,)
with tempfile.TemporaryDirectory() as directory, tempfile.NamedTemporaryFile(dir=directory) as file:
    file.write(b"x")
assert subprocess.run(["sh", "-c", "echo out; echo err >&2; exit 3"], capture_output=True).returncode == 3
assert subprocess.check_output("echo piped | tr a-z A-Z", shell=True) == b"PIPED\n"
context = ssl.create_default_context()
# With the host's certificates, so that a gateway may be spoken to later.
assert context.verify_mode is ssl.CERT_REQUIRED
assert zoneinfo.ZoneInfo("Europe/Paris").utcoffset(datetime.datetime(2024, 7, 1)) == datetime.timedelta(hours=2)
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", "test -t 0 && echo terminal"])
text = b""
while b"\n" not in text:
    text += os.read(terminal, 100)
assert b"terminal" in text
os.waitpid(pid, 0)
assert pwd.getpwuid(os.getuid()).pw_name == getpass.getuser() == "agent"
assert grp.getgrgid(os.getgid()).gr_name
assert os.path.expanduser("~") == os.environ["HOME"] and os.access(os.environ["HOME"], os.W_OK)
assert os.cpu_count() and platform.machine() and uuid.uuid4() and secrets.token_hex(4)
memory = mmap.mmap(-1, 1 << 20)
memory[:4] = b"abcd"
with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_LZMA) as archive:
    archive.writestr("x", b"y" * 1000)
assert lzma.decompress(lzma.compress(b"z")) == b"z" and hashlib.sha3_256(b"").hexdigest()
shutil.copytree("/usr/share/zoneinfo/Europe" if os.path.isdir("/usr/share/zoneinfo/Europe") else "/etc/ssl", "copied")
pathlib.Path("link").symlink_to("copied")
assert pathlib.Path("link").resolve() == pathlib.Path("copied").resolve()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
assert ctypes.CDLL(None).getpid() == os.getpid()
assert decimal.Decimal("0.1") * 3 == decimal.Decimal("0.3") and json.loads("[1]") == [1] and time.monotonic() > 0
os.posix_fallocate(os.open("allocated", os.O_RDWR | os.O_CREAT), 0, 4096)
os.sched_setaffinity(0, os.sched_getaffinity(0))
with open("/dev/stdout", "w") as out, open("/dev/stderr", "w") as err:
    out.write("to the device\n")
    err.write("to the device\n")
with open("/dev/null", "w") as null, open("/dev/urandom", "rb") as random, open("/dev/zero", "rb") as zero:
    null.write("x")
    assert len(random.read(8)) == 8 and zero.read(4) == b"\0\0\0\0"
assert sys.stdin.read() == ""
print("works")
