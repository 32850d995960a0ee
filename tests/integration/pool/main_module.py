# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""What a program is to itself: its module, its source, its imports."""

from __future__ import annotations

import base64

from tests.integration.pool.case import Case, table


def raw(source: bytes, **more: str) -> Case:
    """A main file of exactly these bytes: the request's text becomes UTF-8, so another file brings them."""
    return Case(
        "import os, sys\nos.replace('bytes', 'main.py')\nos.execv(sys.executable, [sys.executable, 'main.py'])\n",
        {"files": {"bytes": {"base64": base64.b64encode(source).decode()}, **more}},
    )


MAIN = table(
    attributes_of_main="""
import sys
m = sys.modules["__main__"]
for name, value in sorted(vars(m).items()):
    print(name, repr(value)[:120])
print(__builtins__ is __import__("builtins"), m.__dict__ is globals())
""",
    order_of_globals="print(list(globals()))\n",
    arguments=Case("import sys\nprint(sys.argv, sys.orig_argv[1:])\n", {"args": ["a", "", "--b=c", "\u20ac", "-x"]}),
    no_arguments="import sys\nprint(sys.argv, sys.orig_argv[1:], sys.executable)\n",
    argparse=Case(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\nprint(p.parse_args())\n",
        {"args": ["--n", "x"]},
    ),
    flags="import sys\nprint(sys.flags, sys._xoptions, sys.warnoptions, sys.dont_write_bytecode, sys.pycache_prefix)\n",
    paths="import sys\nprint(sys.path, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.platlibdir)\n",
    import_machinery="import sys\nprint(sys.meta_path, sys.path_hooks, len(sys.builtin_module_names))\n",
    path_importer_cache="import sys\nprint(sorted(sys.path_importer_cache))\n",
    modules_at_start="import sys\nprint(sorted(sys.modules))\n",
    loaded_extensions="import sys\nprint([k for k in sys.modules if k.startswith(('ctypes', '_ctypes', 'struct'))])\n",
    hooks_of_sys="import sys\nprint(sys.excepthook, sys.displayhook, sys.unraisablehook, sys.breakpointhook, sys.gettrace(), sys.getprofile())\n",
    attributes_of_sys="import sys\nprint([n for n in dir(sys) if n.startswith('last_')], sys.getswitchinterval(), sys.get_int_max_str_digits())\n",
    names_of_sys="import sys\nprint(sorted(vars(sys)))\n",
    names_of_builtins="import builtins\nprint(sorted(vars(builtins)))\n",
    import_of_main="import main\nprint(main.__name__, main.__file__, main is __import__('__main__'))\n",
    import_of_dunder_main="import __main__\nx = 5\nprint(__main__.x)\n",
    class_of_main_pickled="""
import pickle
class A:
    def __init__(self, n): self.n = n
def f(): return 7
print(pickle.loads(pickle.dumps(A(3))).n, pickle.loads(pickle.dumps(f))(), A.__module__, A, pickle.dumps(A))
""",
    dataclasses_of_main="""
from __future__ import annotations
from dataclasses import dataclass, field, asdict
from typing import get_type_hints
@dataclass(order=True)
class P:
    x: int
    y: list[int] = field(default_factory=list)
print(P(1), asdict(P(1, [2])), get_type_hints(P))
""",
    source_by_inspect="""
import inspect, linecache
def f(a, *, b=1):
    "Doc."
    return a
class C: pass
print(inspect.getsource(f), inspect.getsource(C), inspect.getsourcefile(f), inspect.getmodule(f), inspect.signature(f))
print(linecache.getline(__file__, 2))
""",
    code_of_main="""
import sys
c = sys._getframe().f_code
print(c.co_filename, c.co_name, c.co_firstlineno, c.co_flags)
def f(): pass
print(f.__code__.co_filename, f.__module__, f.__globals__ is globals(), f.__qualname__)
""",
    runpy_of_itself="""
import runpy, sys
if len(sys.argv) == 1:
    sys.argv.append("again")
    print(sorted(runpy.run_path(__file__))[:4])
else:
    print("second", __name__)
""",
    exec_and_compile="c = compile('print(__name__, x)', 'c', 'exec')\nx = 1\nexec(c)\nexec(c, {'x': 2, '__name__': 'n'})\n",
    future_annotations="from __future__ import annotations\ndef f(a: nowhere): pass\nprint(f.__annotations__)\n",
    no_future_from_outside="def f(a: int): pass\nprint(f.__annotations__, compile('1', 'x', 'exec').co_flags)\n",
    future_in_the_wrong_place="x = 1\nfrom __future__ import annotations\n",
    annotations_of_main="x: int = 3\ny: 'str'\nprint(__annotations__)\n",
    docstring_of_main="'''The program's own words.'''\nprint(__doc__)\n",
    constant_names="print(__debug__, __name__, __file__, __spec__, __package__, __loader__, __cached__)\n",
    loader_of_main="print(__loader__.name, __loader__.path, __loader__.get_source('__main__')[:10], __loader__.is_package('__main__'))\n",
    star_of_a_neighbour=Case(
        "from other import *\nprint(a, sorted(n for n in globals() if n[0] != '_'))\n",
        {"files": {"other.py": "a = 1\n_b = 2\n"}},
    ),
    package_beside_it=Case(
        "import p.q\nfrom p import q\nprint(p.__path__, q.__file__, q.v, q.__cached__)\n",
        {"files": {"p/__init__.py": "", "p/q.py": "from . import r\nv = r.v\n", "p/r.py": "v = 9\n"}},
    ),
    namespace_package=Case("import n.m\nprint(n.__path__, n.m.v)\n", {"files": {"n/m.py": "v = 1\n"}}),
    module_named_as_one_of_the_library=Case(
        "import random\nprint(random.__file__, random.v)\n", {"files": {"random.py": "v = 1\n"}}
    ),
    module_named_as_one_loaded_early=Case(
        "import os, stat, io\nprint(os.__file__, stat.__file__)\n", {"files": {"os.py": "1/0", "stat.py": "1/0"}}
    ),
    modules_named_as_those_the_pool_needs=Case(
        "import ctypes, struct, signal, gc\nprint(ctypes.__file__, struct.__file__, signal.__file__)\n",
        {"files": {"ctypes.py": "", "struct.py": "", "signal.py": "", "traceback.py": "", "linecache.py": ""}},
    ),
    traceback_module_of_its_own=Case(
        "1/0\n", {"files": {"traceback.py": "print('mine')", "linecache.py": "", "tokenize.py": ""}}
    ),
    sitecustomize_beside_it=Case(
        "print('main')\n", {"files": {"sitecustomize.py": "print('site')", "usercustomize.py": "print('user')"}}
    ),
    bytecode_of_a_neighbour=Case(
        "import other, os\nprint(sorted(os.listdir('__pycache__')))\n", {"files": {"other.py": ""}}
    ),
    files_at_start="import os\nprint(sorted(os.listdir('.')), os.listdir('/tmp'), os.listdir('/dev/shm'))\n",
    importlib_resources=Case(
        "import importlib.resources as r\nprint(r.files('p').joinpath('d.txt').read_text())\n",
        {"files": {"p/__init__.py": "", "p/d.txt": "data"}},
    ),
    zip_on_the_path="import sys, zipfile\nzipfile.ZipFile('z.zip', 'w').writestr('inzip.py', 'v = 4')\nsys.path.insert(0, 'z.zip')\nimport inzip\nprint(inzip.v, inzip.__file__)\n",
    reload="import importlib, json\nprint(importlib.reload(json) is json)\n",
    empty_program=Case("\n"),
    comment_only=Case("# nothing"),
    program_without_final_newline=Case("print(1)"),
    carriage_returns=Case("print(1)\r\nif 1:\r\n    print('''a\r\nb''')\r\n"),
    old_mac_newlines=Case("print(1)\rprint(2)\r"),
    form_feeds=Case("\x0cprint(1)\n\x0c\nprint(2)\n"),
    byte_order_mark=Case("\ufeffprint('after the mark')\n"),
    encoding_cookie=Case("# -*- coding: latin-1 -*-\nprint(ascii('\u00e9'))\n"),
    encoding_cookie_in_second_line=Case("#!/usr/bin/env python\n# vim: set fileencoding=utf-8 :\nprint('\u20ac')\n"),
    encoding_cookie_that_is_unknown=Case("# -*- coding: nonsense -*-\nprint(1)\n"),
    byte_order_mark_and_other_cookie=Case("\ufeff# -*- coding: latin-1 -*-\nprint(1)\n"),
    nul_in_the_source=raw(b"print(1)\n\x00print(2)\n"),
    nul_in_a_string=raw(b"print('a\x00b')\n"),
    control_z_in_the_source=Case("print(1)\n\x1aprint(2)\n"),
    nul_at_the_end=raw(b"print(1)\n\x00"),
    source_that_is_not_utf8=raw(b"print('\xff')\n"),
    unicode_names=Case("\u00e9t\u00e9 = 1\nprint(\u00e9t\u00e9, '\u4f60')\n"),
    invisible_character=Case("a\u200b = 1\n"),
    lone_surrogate_escape=Case("print('\\ud800'.encode('utf-8', 'surrogatepass'))\n"),
    long_line=Case("x = " + "+".join(["1"] * 3000) + "\nprint(x)\n"),
    deep_nesting=Case("x = " + "(" * 150 + "1" + ")" * 150 + "\nprint(x)\n"),
    too_deep_nesting=Case("x = " + "(" * 300 + "1" + ")" * 300 + "\nprint(x)\n"),
    invalid_escape=Case("print('\\d')\n"),
    syntax_warning=Case("x = 1\nprint(x is 1)\nassert (1, 'x')\n"),
    return_outside=Case("return 1\n"),
    await_outside=Case("await x\n"),
    walrus_match_and_new_syntax=Case("match [1, 2]:\n    case [a, *b]: print(a, b)\nprint(y := 3)\nprint(f'{y=}')\n"),
    main_file_with_a_shebang=Case("#!/usr/bin/python3 -O\nprint(__debug__)\n"),
    doctest=Case(
        "def f():\n    '''\n    >>> f()\n    2\n    '''\n    return 1\nimport doctest\nprint(doctest.testmod())\n"
    ),
    unittest=Case(
        # What it writes to stderr by itself has a time in it.
        "import io, unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(1, 1)\n"
        "runner = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0)\n"
        "r = unittest.main(exit=False, testRunner=runner).result\nprint(r)\n"
    ),
    unittest_that_fails=Case(
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.fail('no')\n"
        "suite = unittest.defaultTestLoader.loadTestsFromTestCase(T)\nr = unittest.TestResult()\nsuite.run(r)\nprint(r.failures[0][1])\n"
    ),
    removed_main_dict="globals().clear()\n",
    site_packages="import site\nprint(site.getsitepackages(), site.ENABLE_USER_SITE, site.getusersitepackages())\n",
    sysconfig_paths="import sysconfig\nprint(sysconfig.get_paths(), sysconfig.get_platform())\n",
    code_module="import code\ncode.InteractiveInterpreter({'a': 1}).runsource('print(a)')\n",
    self_is_a_package_of_ctypes="import ctypes\nprint(ctypes.CDLL(None).getpid() == __import__('os').getpid(), ctypes.pythonapi.Py_GetVersion is ctypes.pythonapi.Py_GetVersion)\n",
    garbage_of_main="import gc\nprint(gc.garbage, gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() >= 0)\n",
    tracemalloc="import tracemalloc\nprint(tracemalloc.is_tracing())\ntracemalloc.start()\nx = [1] * 10\nprint(tracemalloc.get_object_traceback(x))\n",
    settrace="import sys\nlines = []\ndef t(f, e, a):\n    lines.append((f.f_code.co_name, e))\n    return t\nsys.settrace(t)\ndef f():\n    return 1\nf()\nsys.settrace(None)\nprint(lines)\n",
    setprofile="import sys\nseen = []\nsys.setprofile(lambda f, e, a: seen.append((f.f_code.co_name, e)))\ndef f(): pass\nf()\nsys.setprofile(None)\nprint(seen)\n",
    profile_module="import cProfile, pstats, io\np = cProfile.Profile()\np.enable()\nsum(range(10))\np.disable()\ns = io.StringIO()\npstats.Stats(p, stream=s).print_stats()\nprint('sum' in s.getvalue())\n",
    audit_hook="import sys\nseen = []\nsys.addaudithook(lambda e, a: seen.append(e) if e == 'open' else None)\nopen('x', 'w').close()\nprint(seen)\n",
    pdb_reads_stdin=Case("import pdb\nx = 1\npdb.set_trace()\nprint('done')\n", {"stdin": "p x\nbt\nc\n"}),
    breakpoint_reads_stdin=Case("x = 1\nbreakpoint()\nprint('done')\n", {"stdin": "p x\nw\nc\n"}),
)
