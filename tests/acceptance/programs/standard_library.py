# SPDX-License-Identifier: MIT
"""What ordinary Python programs do, each thing for itself; prints what failed as JSON, then "works"."""

import asyncio
import concurrent.futures
import ctypes
import ctypes.util
import datetime
import dbm
import getpass
import glob
import importlib.metadata
import inspect
import json
import logging.handlers
import mimetypes
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import pathlib
import platform
import pty
import pwd
import shelve
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest.mock
import uuid
import zipfile
import zoneinfo

FAILED = []


def square(number):
    return number * number


def attempt(what):
    try:
        what()
    except BaseException as error:
        FAILED.append(f"{what.__name__}: {type(error).__name__}: {error}")
    return what


def checks():
    @attempt
    def temporary_files():
        with tempfile.NamedTemporaryFile() as one, tempfile.TemporaryDirectory() as directory:
            one.write(b"x")
            pathlib.Path(directory, "a").write_text("a")
        os.close(tempfile.mkstemp()[0])
        with tempfile.TemporaryFile() as two, tempfile.SpooledTemporaryFile(max_size=1) as three:
            two.write(b"x")
            three.write(b"xyz")
        with tempfile.NamedTemporaryFile(dir="out"):
            pass

    @attempt
    def time_zones():
        assert datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset().seconds == 7200
        assert len(zoneinfo.available_timezones()) > 100

    @attempt
    def what_the_platform_is():
        assert platform.platform() and platform.uname() and platform.libc_ver()
        platform.processor()
        platform.freedesktop_os_release()

    @attempt
    def foreign_functions():
        assert ctypes.CDLL(None).getpid() == os.getpid()

    @attempt
    def foreign_library_by_name():
        ctypes.util.find_library("m")

    @attempt
    def processes_that_are_forked_spawned_and_served():
        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(2) as pool:
                assert pool.map(square, range(4)) == [0, 1, 4, 9]

    @attempt
    def manager_of_shared_objects():
        with multiprocessing.Manager() as manager:
            assert list(manager.list([1])) == [1]

    @attempt
    def shared_memory():
        block = multiprocessing.shared_memory.SharedMemory(create=True, size=10)
        block.close()
        block.unlink()

    @attempt
    def executors():
        with concurrent.futures.ProcessPoolExecutor(2) as pool:
            assert list(pool.map(square, [1, 2])) == [1, 4]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(square, range(50))) == 40425

    @attempt
    def hundred_threads():
        threads = [threading.Thread(target=lambda: pathlib.Path("data/notes.txt").read_text()) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @attempt
    def coroutines_with_a_server_and_a_process():
        async def main():
            process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
            assert (await process.communicate())[0] == b"hi\n"
            server = await asyncio.start_server(lambda r, w: (w.write(b"x"), w.close()), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read(1) == b"x"
            writer.close()
            server.close()

        asyncio.run(main())

    @attempt
    def sockets_of_its_own():
        one, other = socket.socketpair()
        one.send(b"x")
        assert other.recv(1) == b"x"
        path = tempfile.mkdtemp() + "/s"
        listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        client.connect(path)
        assert socket.gethostname() and socket.getaddrinfo("localhost", 80)

    @attempt
    def programs():
        assert subprocess.check_output("echo a | cat", shell=True) == b"a\n"
        assert subprocess.check_output([sys.executable, "-c", "import json; print(1)"]) == b"1\n"
        child = subprocess.Popen(["sleep", "50"])
        child.terminate()
        assert child.wait() == -signal.SIGTERM
        child = subprocess.Popen(["sleep", "50"], start_new_session=True)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    @attempt
    def databases():
        with sqlite3.connect("out/a.db") as database:
            database.execute("create table t(a)")
            database.execute("insert into t values (1)")
        assert sqlite3.connect("out/a.db").execute("select a from t").fetchall() == [(1,)]
        dbm.open("out/dbm", "c").close()
        shelve.open("out/shelf").close()

    @attempt
    def logs():
        logging.handlers.RotatingFileHandler("out/log").emit(logging.makeLogRecord({"msg": "x"}))

    @attempt
    def archives():
        with zipfile.ZipFile("out/a.zip", "w") as archive:
            archive.writestr("a", "b")
        with tarfile.open("out/a.tgz", "w:gz") as archive:
            archive.add("data")

    @attempt
    def trees():
        shutil.copytree("data", "out/copy")
        assert list(os.walk("out/copy"))[0][2] == ["notes.txt"]
        assert glob.glob("out/**/*.txt", recursive=True)
        shutil.rmtree("out/copy")
        os.listdir(".")

    @attempt
    def changes_of_files():
        pathlib.Path("out/a1").write_text("x")
        os.replace("out/a1", "out/a2")
        os.symlink("a2", "out/link")
        os.link("out/a2", "out/hard")
        assert pathlib.Path("out/link").read_text() == pathlib.Path("out/hard").read_text() == "x"
        os.chmod("out/a2", 0o755)
        os.utime("out/a2")
        os.mkfifo("out/fifo")
        os.truncate("out/a2", 0)
        shutil.copyfile("out/a2", "out/a3")
        with open("out/a3", "r+b") as file:
            file.write(b"x" * 100)
            file.flush()
            mmap.mmap(file.fileno(), 100).close()

    @attempt
    def who_and_where():
        assert getpass.getuser() and pwd.getpwuid(os.getuid()).pw_dir
        cache = pathlib.Path.home() / ".cache" / "x"
        cache.mkdir(parents=True)
        (cache / "a").write_text("a")
        assert uuid.uuid1() != uuid.uuid4() and uuid.getnode()
        assert os.cpu_count() and os.sched_getaffinity(0) and os.getloadavg()

    @attempt
    def devices_and_streams():
        assert len(open("/dev/urandom", "rb").read(3)) == 3
        open("/dev/null", "w").write("x")
        for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/stderr"):
            with open(name, "w") as stream:
                print("through", name, file=stream)
        os.close(pty.openpty()[0])
        assert os.listdir("/dev/fd")

    @attempt
    def what_the_kernel_says():
        for name in ("/proc/cpuinfo", "/proc/meminfo", "/proc/self/status", "/proc/self/maps", "/proc/uptime"):
            assert open(name).read(9)
        assert os.readlink("/proc/self/exe")

    @attempt
    def certificates_and_types():
        ssl.create_default_context()
        assert mimetypes.guess_type("a.html")[0] == "text/html"

    @attempt
    def itself():
        assert inspect.getsource(square)
        list(importlib.metadata.distributions())
        unittest.mock.Mock()()
        exec(compile("import abc", "x", "exec"))


if __name__ == "__main__":
    checks()
    print(json.dumps(FAILED))
