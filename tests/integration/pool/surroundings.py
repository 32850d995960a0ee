# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""What a program finds around itself: processes, threads, signals, environment, time, descriptors."""

from __future__ import annotations

from tests.integration.pool.case import Case, table

MADE = frozenset({"made"})

PROCESSES = table(
    subprocess_of_python="import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys, os; print(sys.argv, os.getcwd(), sorted(os.environ))'], capture_output=True, text=True))\n",
    subprocess_that_fails="import subprocess\nsubprocess.run(['false'], check=True)\n",
    subprocess_not_found="import subprocess\nsubprocess.run(['no-such-program'])\n",
    subprocess_pipes="import subprocess\np = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\nprint(p.communicate(b'abc'), p.returncode)\n",
    descriptors_of_a_child="import subprocess\nprint(subprocess.run('ls -l /proc/self/fd | wc -l', shell=True, capture_output=True, close_fds=False).stdout)\n",
    signals_of_a_child="import subprocess\nprint(subprocess.run('grep Sig /proc/self/status', shell=True, capture_output=True, text=True, restore_signals=False).stdout)\n",
    system_and_popen="import os\nprint(os.system('exit 3'), os.popen('echo x').read())\n",
    fork_and_wait="import os\npid = os.fork()\nif pid == 0: os._exit(3)\nprint(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    no_children_at_start="import os\ntry:\n    os.wait()\nexcept ChildProcessError as e: print(e)\n",
    vfork_and_spawn="import os\nprint(os.posix_spawn('/bin/true', ['true'], {}) > 1, os.wait()[1])\n",
    multiprocessing_fork="import multiprocessing as m\ndef f(n): return n * n\nif __name__ == '__main__':\n    with m.get_context('fork').Pool(2) as p: print(p.map(f, range(5)))\n",
    multiprocessing_spawn="import multiprocessing as m\ndef f(n): return n * n, __name__\nif __name__ == '__main__':\n    with m.get_context('spawn').Pool(2) as p: print(p.map(f, range(3)))\n",
    multiprocessing_forkserver="import multiprocessing as m\ndef f(n): return n * n, __name__\nif __name__ == '__main__':\n    with m.get_context('forkserver').Pool(2) as p: print(p.map(f, range(3)))\n",
    multiprocessing_shared="""
import multiprocessing as m
from multiprocessing import shared_memory
def f(q, v):
    with v.get_lock(): v.value += 1
    q.put("from child")
if __name__ == "__main__":
    q, v = m.Queue(), m.Value("i", 1)
    p = m.Process(target=f, args=(q, v)); p.start(); print(q.get(), p.join(), v.value, p.exitcode)
    s = shared_memory.SharedMemory(create=True, size=16); s.buf[0] = 7; print(s.buf[0]); s.close(); s.unlink()
    print(m.current_process().name, m.parent_process())
""",
    process_pool="from concurrent.futures import ProcessPoolExecutor\ndef f(n): return n + 1\nif __name__ == '__main__':\n    with ProcessPoolExecutor(2) as e: print(list(e.map(f, range(3))))\n",
    threads_at_start="import threading, os\nprint(threading.enumerate(), threading.active_count(), len(os.listdir('/proc/self/task')), threading.main_thread().name)\n",
    thread_identity="import threading, os\nprint(threading.get_native_id() == os.getpid(), threading.main_thread().native_id == os.getpid(), threading.main_thread().ident == threading.get_ident(), threading.current_thread() is threading.main_thread())\n",
    thread_local="import threading\nl = threading.local()\nl.x = 1\nt = threading.Thread(target=lambda: print(hasattr(l, 'x')))\nt.start(); t.join()\nprint(l.x)\n",
    context_variables="import contextvars\nv = contextvars.ContextVar('v', default=0)\nprint(list(contextvars.copy_context()))\nv.set(3)\nprint(v.get(), contextvars.copy_context().run(v.get))\n",
    many_threads="import threading\nn = []\nts = [threading.Thread(target=n.append, args=(i,)) for i in range(50)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(len(n))\n",
    thread_stack_size="import threading, resource\nprint(threading.stack_size(), resource.getrlimit(resource.RLIMIT_STACK))\n",
    asyncio_run="import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    p = await asyncio.create_subprocess_exec('echo', 'x', stdout=asyncio.subprocess.PIPE)\n    print(await p.communicate(), p.returncode)\n    print(await asyncio.to_thread(lambda: 5))\nasyncio.run(main())\n",
    asyncio_with_an_exception="import asyncio\nasync def main(): raise ValueError('a')\nasyncio.run(main())\n",
    asyncio_interrupted="import asyncio, os, signal\nasync def main():\n    os.kill(os.getpid(), signal.SIGINT)\n    await asyncio.sleep(60)\nasyncio.run(main())\n",
    asyncio_server="import asyncio\nasync def serve(r, w):\n    w.write(await r.readline()); w.close()\nasync def main():\n    s = await asyncio.start_server(serve, '127.0.0.1', 0)\n    r, w = await asyncio.open_connection(*s.sockets[0].getsockname())\n    w.write(b'hello\\n'); print(await r.read())\nasyncio.run(main())\n",
    asyncio_left_running="import asyncio\nasync def f():\n    try:\n        await asyncio.sleep(60)\n    finally:\n        print('cancelled')\nasync def main():\n    asyncio.create_task(f())\n    await asyncio.sleep(0)\nasyncio.run(main())\n",
    no_event_loop="import asyncio\ntry:\n    asyncio.get_running_loop()\nexcept RuntimeError as e: print(e)\n",
    signal_handlers="import signal\nprint([(s.name, str(signal.getsignal(s))) for s in signal.valid_signals() if isinstance(s, signal.Signals)])\nprint(signal.pthread_sigmask(0, []), signal.sigpending())\n",
    signal_wakeup="import signal\nprint(signal.set_wakeup_fd(-1), signal.getitimer(signal.ITIMER_REAL))\n",
    alarm_handler="import signal, time\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.1)\nprint('on')\n",
    children_signal="import os, signal\nsignal.signal(signal.SIGCHLD, lambda *a: print('child'))\nif os.fork() == 0: os._exit(0)\nos.wait()\nprint('on')\n",
    signal_masks_in_the_kernel="print([l for l in open('/proc/self/status') if l.startswith(('Sig', 'Shd'))])\n",
)

STATE = table(
    environment="import os\nprint(sorted(os.environ.items()))\n",
    order_of_the_environment="import os\nprint(list(os.environ))\n",
    environment_with_additions=Case(
        "import os\nprint(sorted(os.environ.items()), os.getenv('GIVEN'))\n",
        {"env": {"GIVEN": "1", "EMPTY": "", "U": "\u20ac"}},
    ),
    environment_of_children=Case("import os\nos.system('echo $GIVEN $HOME $PATH')\n", {"env": {"GIVEN": "1"}}),
    environment_seen_by_the_c_library=Case(
        "import ctypes\ng = ctypes.CDLL(None).getenv\ng.restype = ctypes.c_char_p\nprint(g(b'GIVEN'), g(b'HOME'))\n",
        {"env": {"GIVEN": "1"}},
    ),
    environment_with_path=Case(
        "import os, shutil\nprint(os.environ['PATH'], shutil.which('ls'))\n", {"env": {"PATH": "/nowhere"}}
    ),
    environment_with_home=Case("import os\nprint(os.path.expanduser('~'))\n", {"env": {"HOME": "/work/home"}}),
    environment_with_temporary_directory=Case(
        "import tempfile\nprint(tempfile.gettempdir())\n", {"env": {"TMPDIR": "/work"}}
    ),
    environment_with_columns=Case("import shutil\nprint(shutil.get_terminal_size())\n", {"env": {"COLUMNS": "33"}}),
    environment_changed="import os\nos.environ['NEW'] = '1'\ndel os.environ['HOME']\nos.system('echo $NEW $HOME')\n",
    variable_with_a_newline=Case("import os\nprint(repr(os.environ['A']))\n", {"env": {"A": "x\ny=z"}}),
    hash_seed_given=Case("print(hash('a'))\n", {"env": {"PYTHONHASHSEED": "5"}}, MADE),
    pythonpath_given=Case("import sys\nprint(sys.path)\n", {"env": {"PYTHONPATH": "/work/lib"}}, MADE),
    buffered=Case(
        "import os, sys\nprint(sys.stdout.write_through)\nos.write(1, b'first')\n",
        {"env": {"PYTHONUNBUFFERED": ""}},
        MADE,
    ),
    optimised=Case("assert False\nprint(__debug__)\n", {"env": {"PYTHONOPTIMIZE": "1"}}, MADE),
    development_mode=Case("import sys\nprint(sys.flags.dev_mode)\n", {"env": {"PYTHONDEVMODE": "1"}}, MADE),
    warnings_given=Case(
        "import warnings\nwarnings.warn('x', DeprecationWarning)\n", {"env": {"PYTHONWARNINGS": "error"}}, MADE
    ),
    io_encoding_given=Case("import sys\nprint(sys.stdout.encoding)\n", {"env": {"PYTHONIOENCODING": "latin-1"}}, MADE),
    language_given=Case(
        "import locale\nprint(locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL, ''))\n",
        {"env": {"LANG": "C"}},
        MADE,
    ),
    all_of_the_locale_given=Case(
        "import locale, sys\nprint(sys.getfilesystemencoding(), locale.localeconv()['decimal_point'])\n",
        {"env": {"LC_ALL": "POSIX"}},
        MADE,
    ),
    time_zone_given=Case(
        "import time\nprint(time.tzname, time.localtime(0).tm_hour, time.timezone)\n",
        {"env": {"TZ": "Asia/Tokyo"}},
        MADE,
    ),
    library_path_given=Case(
        "import os\nprint(os.environ['LD_LIBRARY_PATH'])\n", {"env": {"LD_LIBRARY_PATH": "/work"}}, MADE
    ),
    preload_given=Case("print('x')\n", {"env": {"LD_PRELOAD": "/work/none.so"}}, MADE),
    allocator_given=Case("print('x')\n", {"env": {"MALLOC_ARENA_MAX": "1", "PYTHONMALLOC": "malloc"}}, MADE),
    exit_code_when_made=Case("import sys\nsys.exit(7)\n", {"env": {"PYTHONHASHSEED": "0"}}, MADE),
    signal_when_made=Case("import os\nos.kill(os.getpid(), 15)\n", {"env": {"PYTHONHASHSEED": "0"}}, MADE),
    streams_when_made=Case(
        "import sys\nprint(sys.stdin.read())\n1/0\n",
        {"env": {"PYTHONHASHSEED": "0"}, "stdin": "abc", "args": ["x"]},
        MADE,
    ),
    bash=Case("echo $0 $1; read a; echo $a >&2; exit 3", {"language": "bash", "args": ["x"], "stdin": "abc\n"}, MADE),
    time_zone="import time\nprint(time.tzname, time.timezone, time.localtime(0))\n",
    time_zone_set="import os, time\nos.environ['TZ'] = 'Asia/Tokyo'\ntime.tzset()\nprint(time.tzname, time.localtime(0).tm_hour)\n",
    locale_at_start="import locale, sys\nprint(locale.setlocale(locale.LC_ALL), locale.getlocale(), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getdefaultencoding())\n",
    locale_set="import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8')\nprint(locale.setlocale(locale.LC_ALL))\n",
    umask_and_directory="import os\nprint(oct(os.umask(0)), os.getcwd(), os.stat('.').st_uid, oct(os.stat('.').st_mode))\n",
    ids="import os\nprint(os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups(), os.getlogin if 0 else '')\nimport pwd, getpass\nprint(pwd.getpwuid(os.getuid()), getpass.getuser())\n",
    session="import os\nprint(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.getpid() > 1)\ntry:\n    print(os.ttyname(0))\nexcept OSError as e: print(e)\n",
    terminal="import os\ntry:\n    os.open('/dev/tty', os.O_RDWR)\nexcept OSError as e: print(e)\n",
    priority="import os\nprint(os.nice(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))\n",
    affinity="import os\nprint(os.sched_getaffinity(0), os.cpu_count())\n",
    rlimits="import resource\nprint([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT_')])\n",
    rlimits_when_made=Case(
        "import resource\nprint([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT_')])\n",
        {"env": {"PYTHONHASHSEED": "0"}},
        MADE,
    ),
    rlimits_with_other_limits=Case(
        "import resource\nprint([(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith('RLIMIT_')])\n",
        {"limits": {"pids": 40, "memory_mb": 300, "timeout_seconds": 9}},
    ),
    host_name="import os, socket\nprint(os.uname().nodename, socket.gethostname(), socket.getfqdn())\n",
    interfaces="import socket\nprint(socket.if_nameindex(), open('/proc/net/dev').read())\n",
    descriptors_below_a_thousand="import os\nprint(sorted(int(n) for n in os.listdir('/proc/self/fd') if int(n) < 900))\n",
    lowest_free_descriptor="import os\nprint(os.open('/dev/null', 0), os.dup(1))\n",
    descriptors_are_inheritable="import os\nprint([os.get_inheritable(n) for n in range(3)], [os.get_blocking(n) for n in range(3)])\n",
    command_line="print(open('/proc/self/cmdline').read().split('\\0'), open('/proc/self/comm').read())\n",
    command_line_with_words=Case(
        "print(open('/proc/self/cmdline').read().split('\\0'), open('/proc/self/environ').read().split('\\0'))\n",
        {"args": ["a b", "", "c"], "env": {"GIVEN": "1", "HOME": "/work"}},
    ),
    environment_in_the_kernel="print(open('/proc/self/environ').read().split('\\0'))\n",
    program_of_the_process="import os\nprint(os.readlink('/proc/self/exe'), os.readlink('/proc/self/cwd'), os.readlink('/proc/self/root'))\n",
    control_group="print(open('/proc/self/cgroup').read())\n",
    personality="print(open('/proc/self/personality').read() if __import__('os').access('/proc/self/personality', 4) else '')\n",
    status_of_the_process="print([l for l in open('/proc/self/status') if l.startswith(('Uid', 'Gid', 'Groups', 'Cap', 'NoNew', 'Seccomp', 'Umask', 'Threads', 'TracerPid', 'Cpus_allowed'))])\n",
    own_proc_files_open="import os\nfor n in ('mem', 'environ', 'maps', 'io', 'fd', 'ns/net'):\n    print(n, os.access('/proc/self/' + n, os.R_OK), os.stat('/proc/self/' + n).st_uid)\n",
    collector="import gc\nprint(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks)\n",
    cycles_are_collected="import gc, weakref\nclass A: pass\na = A(); a.a = a\nw = weakref.ref(a)\ndel a\nprint(gc.collect() > 0, w())\n",
    warnings_filters="import warnings\nprint(warnings.filters)\nwarnings.warn('seen')\nwarnings.warn('old', DeprecationWarning)\n",
    fault_handler="import faulthandler\nprint(faulthandler.is_enabled())\nfaulthandler.dump_traceback()\n",
    random_seeded="import random\nrandom.seed(3)\nprint(random.random(), random.randrange(1000), random.Random(4).random())\n",
    clocks_move_on="import time\na = time.perf_counter()\nprint(time.process_time() < 5, time.perf_counter() >= a, time.thread_time() < 5, abs(time.time() - time.time_ns() / 1e9) < 5)\n",
    platform_module="import platform\nprint(platform.python_version(), platform.machine(), platform.node())\n",
    int_limit="print(int('9' * 5000))\n",
    decimal_context="import decimal\nprint(decimal.getcontext())\n",
    sockets="import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1), a.fileno() < 20)\ns = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname())\nprint(c.getpeername()[0])\n",
    no_network="import socket\ntry:\n    socket.create_connection(('192.0.2.1', 80), 2)\nexcept OSError as e: print(e)\ntry:\n    socket.getaddrinfo('example.com', 80)\nexcept OSError as e: print(e)\n",
    disk_and_memory="import os\nv = os.statvfs('/work')\nprint(v.f_blocks * v.f_frsize, v.f_files, os.statvfs('/tmp').f_blocks == v.f_blocks, os.statvfs('/dev/shm').f_blocks == v.f_blocks)\n",
    disk_with_another_limit=Case(
        "import os\nv = os.statvfs('/work')\nprint(v.f_blocks * v.f_frsize, v.f_files)\n", {"limits": {"disk_mb": 20}}
    ),
    files_are_the_guests="import os\nos.makedirs('a/b'); open('a/c', 'w').close()\ns = os.stat('a/c')\nprint(s.st_uid, s.st_gid, oct(s.st_mode), os.listdir('a'), os.stat('main.py').st_uid, oct(os.stat('main.py').st_mode))\n",
    read_only_view="import os\nfor p in ('/x', '/usr/x', '/etc/x', '/proc/x', '/dev/x'):\n    try:\n        open(p, 'w')\n    except OSError as e: print(p, e)\n",
    top_of_the_view="import os\nprint(sorted(os.listdir('/')), sorted(os.listdir('/etc')), sorted(os.listdir('/dev')))\n",
    terminals="import os, pty\na, b = pty.openpty()\nprint(os.ttyname(b), os.isatty(a))\n",
    program_on_a_terminal="import os, pty\npid, fd = pty.fork()\nif pid == 0:\n    print(os.isatty(0)); os._exit(0)\nsaid = b''\nwhile b'\\n' not in said: said += os.read(fd, 99)\nprint(said); os.wait()\n",
    memory_error="try:\n    x = bytearray(1 << 46)\nexcept MemoryError: print('no memory')\n",
    sqlite_and_friends="import sqlite3, json, zlib, hashlib, ssl\nc = sqlite3.connect('d.db')\nc.execute('create table t(a)'); c.commit()\nprint(hashlib.sha256(b'x').hexdigest(), len(zlib.compress(b'a' * 99)), ssl.OPENSSL_VERSION)\n",
)
