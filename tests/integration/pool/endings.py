# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""How programs end: exceptions, exit codes, signals, and what is said on the way out."""

from __future__ import annotations

from tests.integration.pool.case import Case, table

EXCEPTIONS = table(
    exception_in_a_function="def f(a):\n    return 1 / a\n\nf(0)\n",
    chained_exceptions="""
try:
    {}["a"]
except KeyError as error:
    try:
        raise ValueError("second") from error
    except ValueError:
        raise TypeError("third")
""",
    suppressed_context="try:\n    1/0\nexcept ZeroDivisionError:\n    raise ValueError('alone') from None\n",
    exception_group="raise ExceptionGroup('two', [ValueError(1), TypeError(2)])\n",
    exception_with_notes="e = ValueError('x')\ne.add_note('a note')\nraise e\n",
    exception_whose_text_cannot_be_made="class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n",
    syntax_error="print('before')\ndef f(:\n    pass\n",
    indentation_error="if True:\npass\n",
    tab_error="if True:\n    a = 1\n\tb = 2\n",
    unterminated_string="x = 'abc\n",
    syntax_error_in_an_imported_file=Case("import other\n", {"files": {"other.py": "def (:\n"}}),
    exception_in_an_imported_file=Case("import other\n", {"files": {"other.py": "x = 1\nraise KeyError('there')\n"}}),
    error_in_eval="eval('1 +')\n",
    endless_recursion="def f(): return f()\nf()\n",
    depth_of_recursion_left="""
import sys
def depth(n=0):
    try:
        return depth(n + 1)
    except RecursionError:
        return n
print(depth(), sys.getrecursionlimit())
sys.setrecursionlimit(100)
print(depth())
""",
    deep_recursion="""
import sys
sys.setrecursionlimit(20000)
def f(n): return 0 if n == 0 else 1 + f(n - 1)
print(f(15000))
""",
    stack_of_the_program="""
import inspect, sys, traceback
def f():
    traceback.print_stack()
    print([(one.function, one.filename, one.lineno) for one in inspect.stack()])
    print(sys._getframe(1).f_code.co_name, sys._getframe(1).f_back)
f()
""",
    traceback_of_a_caught_exception="""
import traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
    print(traceback.format_exc())
""",
    exception_in_a_thread="""
import threading
def work(): raise ValueError("in thread")
t = threading.Thread(target=work, name="worker")
t.start(); t.join()
print("after")
""",
    keyboard_interrupt="raise KeyboardInterrupt\n",
    keyboard_interrupt_from_itself="import os, signal\nprint('x')\nos.kill(os.getpid(), signal.SIGINT)\nprint('not here')\n",
    keyboard_interrupt_of_a_subclass="class K(KeyboardInterrupt): pass\nraise K('mine')\n",
    import_error="import nowhere_to_be_found\n",
    name_error_with_a_suggestion="value = 1\nprint(valeu)\n",
    attribute_error_with_a_suggestion="import os\nos.getpidd()\n",
    excepthook_replaced="import sys\nsys.excepthook = lambda *a: print('mine', a[0].__name__, a[1], a[2].tb_lineno)\n\n1/0\n",
    excepthook_that_fails="import sys\ndef hook(*a): raise RuntimeError('hook')\nsys.excepthook = hook\n1/0\n",
    excepthook_that_exits="import sys\ndef hook(*a): sys.exit(7)\nsys.excepthook = hook\n1/0\n",
    excepthook_deleted="import sys\ndel sys.excepthook\n1/0\n",
    excepthook_that_is_none="import sys\nsys.excepthook = None\n1/0\n",
    stderr_that_is_none="import sys\nsys.stderr = None\n1/0\n",
    stderr_that_is_deleted="import sys\ndel sys.stderr\n1/0\n",
    tracebacklimit="import sys\nsys.tracebacklimit = 1\ndef f(): g()\ndef g(): 1/0\nf()\n",
    last_exception_at_exit="""
import atexit, sys
atexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno, sys.last_traceback.tb_next))
1/0
""",
    unraisable_exception="class A:\n    def __del__(self): raise ValueError('lost')\na = A()\ndel a\nprint('on')\n",
    unraisablehook_replaced="""
import sys
sys.unraisablehook = lambda u: print("mine", u.exc_type)
class A:
    def __del__(self): raise ValueError
a = A()
del a
""",
    frames_of_the_traceback="""
try:
    1/0
except ZeroDivisionError as error:
    t = error.__traceback__
    print(t.tb_frame.f_code.co_name, t.tb_frame.f_back, t.tb_next, t.tb_frame.f_globals is globals())
""",
    source_changed_before_the_traceback="open('main.py', 'w').write('changed\\n' * 9)\n\n1/0\n",
    source_removed_before_the_traceback="import os\nos.remove('main.py')\n1/0\n",
)

EXITS = table(
    exit_without_code="raise SystemExit\n",
    exit_none="import sys\nsys.exit(None)\n",
    exit_zero="import sys\nprint('x')\nsys.exit(0)\n",
    exit_three="import sys\nsys.exit(3)\n",
    exit_true="raise SystemExit(True)\n",
    exit_string="import sys\nprint('out')\nsys.exit('what went wrong')\n",
    exit_empty_string="import sys\nsys.exit('')\n",
    exit_tuple="import sys\nsys.exit((1, 2))\n",
    exit_two_arguments="raise SystemExit(1, 2)\n",
    exit_float="import sys\nsys.exit(1.5)\n",
    exit_256="import sys\nsys.exit(256)\n",
    exit_300="import sys\nsys.exit(300)\n",
    exit_minus_one="import sys\nsys.exit(-1)\n",
    exit_two_to_the_32_plus_5="import sys\nsys.exit(2**32 + 5)\n",
    exit_two_to_the_70="import sys\nsys.exit(2**70)\n",
    exit_object_whose_text_cannot_be_made="class A:\n    def __str__(self): raise ValueError\nraise SystemExit(A())\n",
    exit_code_changed="e = SystemExit(3)\ne.code = 4\nraise e\n",
    exit_string_without_stderr="import sys\nsys.stderr = None\nsys.exit('to nobody')\n",
    exit_string_with_other_stderr="import io, sys\nsys.stderr = io.StringIO()\nsys.exit('to nobody')\n",
    exit_string_that_is_not_utf8="import sys\nsys.exit('\\udcff\\u20ac')\n",
    quit_function="print('x')\nquit(4)\n",
    exit_function="exit()\n",
    exit_in_a_function_with_finally="def f():\n    try:\n        raise SystemExit(5)\n    finally:\n        print('finally')\nf()\n",
    exit_in_a_thread="import sys, threading\nt = threading.Thread(target=lambda: sys.exit(3))\nt.start(); t.join()\nprint('on')\n",
    exit_that_is_caught="try:\n    raise SystemExit(3)\nexcept SystemExit as e:\n    print('caught', e.code)\n",
    os_exit="import os\nprint('lost')\nos._exit(9)\n",
    os_exit_after_flush="import os\nprint('kept', flush=True)\nos._exit(0)\n",
    os_exit_in_a_thread="import os, threading, time\nthreading.Thread(target=lambda: os._exit(6)).start()\ntime.sleep(60)\n",
    os_abort="import os\nprint('x', flush=True)\nos.abort()\n",
    segmentation_fault="import ctypes\nprint('x', flush=True)\nctypes.string_at(0)\n",
    segmentation_fault_with_faulthandler="import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)\n",
    killed_by_itself="import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n",
    terminated_by_itself="import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\n",
    terminated_by_its_child="""
import os, signal, subprocess, sys
print('x', flush=True)
subprocess.run([sys.executable, '-c', f'import os; os.kill({os.getpid()}, 15)'])
""",
    hung_up="import os, signal\nos.kill(os.getpid(), signal.SIGHUP)\n",
    user_signal="import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\n",
    alarm="import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(60)\n",
    broken_pipe_signal="import os, signal\nprint(signal.getsignal(signal.SIGPIPE))\nos.kill(os.getpid(), signal.SIGPIPE)\nprint('on')\n",
    handled_signal="""
import os, signal
signal.signal(signal.SIGTERM, lambda n, f: print("got", n, f.f_code.co_name))
os.kill(os.getpid(), signal.SIGTERM)
print("on")
""",
    raise_signal="import signal\nsignal.raise_signal(signal.SIGINT)\n",
    stopped_and_continued="""
import os, signal
pid = os.getpid()
if os.fork() == 0:
    while open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
        pass
    os.kill(pid, signal.SIGCONT)
    os._exit(0)
os.kill(pid, signal.SIGSTOP)
print("on", os.wait()[1])
""",
    exec_of_another_program="import os\nprint('before', flush=True)\nos.execv('/bin/sh', ['sh', '-c', 'echo after; exit 4'])\n",
    exec_of_python="import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.argv, sys.flags)'])\n",
)

AT_EXIT = table(
    order_at_exit="""
import atexit, weakref
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name)
public = Noisy("public")
_private = Noisy("private")
weakref.finalize(public, print, "finalize")
atexit.register(print, "atexit 1")
atexit.register(print, "atexit 2")
class Type:
    held = Noisy("in a class")
def function(held=Noisy("in a default")): pass
print("last line")
""",
    order_of_globals_at_exit="""
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print("del", self.name)
b = Noisy("b"); a = Noisy("a"); _z = Noisy("_z"); __x = Noisy("__x"); _a = Noisy("_a"); __dunder__ = Noisy("__dunder__")
""",
    globals_seen_by_a_destructor="""
import os
class Noisy:
    def __del__(self): print("other is", other, "os is", os and os.name, "class is", Noisy)
first = Noisy()
other = 5
_hidden = Noisy()
""",
    destructor_of_an_imported_module=Case(
        "import other\n",
        {
            "files": {
                "other.py": "import os\nclass N:\n    def __del__(self): print('del', os and os.name, N)\nn = N()\n"
            }
        },
    ),
    cycle_at_exit="""
class Noisy:
    def __del__(self): print("del in a cycle")
n = Noisy(); n.me = n
""",
    destructor_after_exception="class N:\n    def __del__(self): print('del')\nn = N()\ndef f():\n    inner = N()\n    1/0\nf()\n",
    destructor_after_exit="class N:\n    def __del__(self): print('del')\nn = N()\ndef f():\n    inner = N()\n    raise SystemExit(3)\nf()\n",
    exception_in_a_destructor_at_exit="class N:\n    def __del__(self): raise ValueError('late')\nn = N()\n",
    exit_in_a_destructor="import sys\nclass N:\n    def __del__(self): sys.exit(4)\nn = N()\n",
    exit_in_atexit="import atexit, sys\natexit.register(lambda: sys.exit(4))\natexit.register(lambda: print('first'))\nprint('x')\n",
    exception_in_atexit="import atexit\ndef f(): 1/0\natexit.register(f)\natexit.register(print, 'other')\n",
    exception_in_atexit_after_exit="import atexit, sys\ndef f(): 1/0\natexit.register(f)\nsys.exit(3)\n",
    atexit_registered_by_atexit="import atexit\ndef f():\n    print('f')\n    atexit.register(print, 'late')\natexit.register(f)\n",
    atexit_unregistered="import atexit\natexit.register(print, 1)\natexit.unregister(print)\n",
    atexit_that_ends_at_once="import atexit, os\natexit.register(os._exit, 3)\nprint('lost?')\n",
    atexit_kills_itself="import atexit, os, signal\natexit.register(lambda: os.kill(os.getpid(), 9))\nprint('x', flush=True)\n",
    thread_that_outlives_main="""
import threading, time
def work():
    time.sleep(0.05)
    print("from the thread")
threading.Thread(target=work).start()
print("main ends")
""",
    thread_that_fails_after_main="""
import threading, time
def work():
    time.sleep(0.05)
    raise ValueError
threading.Thread(target=work, name="w").start()
""",
    thread_and_atexit="""
import atexit, threading, time
atexit.register(print, "atexit")
threading._register_atexit(print, "threading atexit")
def work():
    time.sleep(0.05)
    print("thread")
threading.Thread(target=work).start()
""",
    daemon_thread="""
import threading, time
def work():
    while True: time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
print("main ends")
""",
    daemon_thread_that_prints="""
import threading, time, sys
started = threading.Event()
def work():
    started.set()
    time.sleep(60)
    print("never")
threading.Thread(target=work, daemon=True).start()
started.wait()
""",
    executor_left_open="""
from concurrent.futures import ThreadPoolExecutor
e = ThreadPoolExecutor(2)
f = e.submit(lambda: print("done"))
""",
    generator_with_finally="""
def g():
    try:
        yield 1
    finally:
        print("generator closed")
one = g()
next(one)
""",
    context_manager_left_open="""
import contextlib
@contextlib.contextmanager
def c():
    print("in")
    try:
        yield
    finally:
        print("out")
c().__enter__()
stack = contextlib.ExitStack()
stack.enter_context(c())
""",
    coroutine_never_awaited="async def f(): pass\nf()\nc = f()\n",
    asynchronous_generator_left="async def g():\n    yield 1\none = g()\nprint('x')\n",
    temporary_directory_left="import os, tempfile\nd = tempfile.TemporaryDirectory()\nprint(os.path.isdir(d.name))\n",
    file_left_open="f = open('kept.txt', 'w')\nf.write('not flushed')\nprint('x')\n",
    file_left_open_is_flushed=Case(
        "f = open('kept.txt', 'w')\nf.write('not flushed')\n", {"return_files": ["kept.txt"]}
    ),
    warning_of_a_resource_left="import warnings\nwarnings.simplefilter('always')\nf = open('kept.txt', 'w')\n",
    module_replaced_in_sys_modules="import sys\nclass N:\n    def __del__(self): print('del')\nsys.modules['odd'] = N()\n",
    main_removed_from_sys_modules="import sys\nclass N:\n    def __del__(self): print('del')\nn = N()\ndel sys.modules['__main__']\n",
    sys_modules_cleared="import sys\nsys.modules.clear()\nprint('x')\n",
    garbage_collector_off="import gc\ngc.disable()\nclass N:\n    def __del__(self): print('del')\nn = N(); n.n = n; del n\n",
    builtins_seen_at_exit="class N:\n    def __del__(self): print(len([1, 2]), open, __name__)\nn = N()\n",
    import_at_exit="class N:\n    def __del__(self):\n        import json\n        print(json.dumps([1]))\nn = N()\n",
    threading_at_exit="""
import threading
class N:
    def __del__(self):
        print(threading and threading.main_thread() is threading.current_thread())
n = N()
""",
    exit_while_a_thread_runs="import sys, threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('t'))).start()\nsys.exit(3)\n",
    interrupt_while_waiting_for_threads="""
import os, signal, threading, time
def work():
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
threading.Thread(target=work).start()
""",
    child_that_leaves_main="import os\nprint('a')\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n    print('parent')\n",
    child_that_fails="import os\nif os.fork() == 0:\n    1/0\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n",
    child_that_exits_and_atexit="""
import atexit, os, sys
atexit.register(lambda: print("atexit", os.getpid() == me))
me = os.getpid()
if os.fork() == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""",
    background_process_left="""
import subprocess
subprocess.Popen(["sleep", "60"])
print("left")
""",
)
