# SPDX-License-Identifier: MIT
"""What a policy must not break: programs that harm nobody work under `agentbox run` as they do without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adversarial.escape.test_ordinary_software import IMPORT_SWEEP
from tests.conftest import not_here
from tests.policy_run import PolicyRun, Project, has_program, new_project

pytestmark = pytest.mark.linux
PROGRAMS = Path(__file__).with_name("programs")
PYTHONS = {"system": "/usr/bin/python3", "tests": sys.executable}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = new_project(tmp_path)
    made.file("data/notes.txt", "notes\n")
    return made


def _agreed(project: Project, done: PolicyRun) -> None:
    assert done.exit_code == 0, done
    assert project.verdict()[0] == 0


@pytest.mark.parametrize("which", PYTHONS)
def test_the_standard_library_works_under_a_sensible_policy(project: Project, which: str) -> None:
    shutil.copy(PROGRAMS / "standard_library.py", project.directory / "agent.py")
    project.policy("read: ./data", "write: ./out", f"exec: {PYTHONS[which]}, echo, cat, sh, sleep")
    done = project.run(PYTHONS[which], "agent.py")
    _agreed(project, done)
    assert json.loads(done.text.splitlines()[-2]) == [], done
    assert done.text.count("through /") == 3
    assert "through /dev/stderr" in done.stderr


@pytest.mark.parametrize("which", PYTHONS)
def test_every_module_that_imports_outside_imports_under_a_policy(project: Project, which: str) -> None:
    project.policy("read: ./data")
    done = project.run(PYTHONS[which], "-c", IMPORT_SWEEP, options=["-q"])
    outside = subprocess.run([PYTHONS[which], "-I", "-c", IMPORT_SWEEP], capture_output=True, text=True, check=True)
    assert json.loads(done.text) == json.loads(outside.stdout), done


@pytest.mark.parametrize("package", ["requests", "httpx", "yaml", "cryptography"])
def test_an_installed_package_imports_under_a_policy(project: Project, package: str) -> None:
    probe = [sys.executable, "-c", f"import {package}"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        not_here(f"the tests' Python has no {package}")
    project.policy("read: ./data")
    done = project.run(sys.executable, "-c", f"import {package}; print('works')", options=["-q"])
    assert done.text == "works\n", done


def test_numpy_computes_with_its_threads_under_a_policy(project: Project, science_python: str) -> None:
    project.policy("write: ./out")
    code = (
        "import numpy as np\n"
        "a = np.random.default_rng(1).random((400, 400)); np.save('out/a.npy', a @ a)\n"
        "assert np.allclose(np.load('out/a.npy'), a @ a); np.linalg.svd(a); print('works')"
    )
    done = project.run(science_python, "-c", code, options=["-q"])
    assert done.text == "works\n", done
    assert project.verdict()[0] == 0


def test_git_makes_and_reads_commits(project: Project) -> None:
    _need("git")
    script = (
        "cd out && git init -q . && echo a > a && git add a && git -c user.name=a -c user.email=a@example.invalid"
        " commit -qm first && git branch other && git checkout -q other && echo b >> a && git diff --stat"
        " && git stash -q && git log --oneline | wc -l && git gc -q && git fsck"
    )
    project.policy("write: ./out", "exec: git, wc")
    done = project.run("sh", "-e", "-c", script, options=["-q"])
    _agreed(project, done)
    assert "1 file changed" in done.text
    assert not done.denials(), done


def test_make_and_a_c_compiler_build_a_program_that_runs(project: Project) -> None:
    for program in ("make", "gcc"):
        _need(program)
    project.file(
        "out/hello.c", '#include <stdio.h>\n#include <math.h>\nint main(void) { printf("%g\\n", cbrt(27)); }\n'
    )
    project.file("out/Makefile", "run: hello\n\t./hello\nhello: hello.c\n\tgcc -O2 -o $@ $< -lm\n")
    project.policy("write: ./out", "exec: make, gcc, as, ld, sh, ./out/hello")
    done = project.run("make", "-s", "-C", "out", options=["-q"])
    _agreed(project, done)
    assert done.text.endswith("3\n"), done


def test_sqlite_s_shell_keeps_a_database(project: Project) -> None:
    _need("sqlite3")
    project.policy("write: ./out")
    project.run("sqlite3", "out/a.db", "create table t(a); insert into t values (42);")
    done = project.run("sqlite3", "out/a.db", "select a from t", options=["-q"])
    _agreed(project, done)
    assert done.text == "42\n"


def test_node_says_hello_reads_writes_and_serves_itself(project: Project) -> None:
    _need("node")
    project.policy("read: ./data", "write: ./out", "exec: node, echo")
    code = (
        "const fs = require('fs'), os = require('os'), http = require('http'), cp = require('child_process');\n"
        "fs.writeFileSync('out/a', fs.readFileSync('data/notes.txt')); fs.mkdtempSync(os.tmpdir() + '/x');\n"
        "fs.writeFileSync('/dev/stdout', 'through a device\\n'); fs.readdirSync('out');\n"
        "console.log(String(cp.execFileSync('echo', ['from a program'])).trim());\n"
        "console.log(String(cp.execFileSync(process.execPath, ['-p', '6*7'])).trim());\n"
        "const server = http.createServer((q, a) => a.end('served')).listen(0, '127.0.0.1', () =>\n"
        "  http.get({port: server.address().port}, (a) => a.on('data', (d) => console.log(String(d)))"
        ".on('end', () => process.exit())));\n"
    )
    done = project.run("node", "-e", code, options=["-q"])
    _agreed(project, done)
    assert done.text.splitlines() == ["through a device", "from a program", "42", "served"], done


def test_a_pipeline_of_the_shell_works(project: Project) -> None:
    project.policy(
        "read: ./data",
        "write: ./out",
        "exec: sort, uniq, head, seq, sed, tee, xargs, echo, find, tar, sh, gzip, mktemp",
    )
    script = (
        "seq 5 | sed s/3/x/ | tee /dev/stderr | sort -r | head -2 | tee out/a; find data -type f | xargs echo;"
        " tar czf out/a.tgz data; t=$(mktemp); echo in >$t; while read -r line; do echo $line; done <$t"
    )
    done = project.run("bash", "-c", script, options=["-q"])
    _agreed(project, done)
    assert done.text == "x\n5\ndata/notes.txt\nin\n"
    assert not done.denials(), done


def _need(program: str) -> None:
    if not has_program(program):
        pytest.skip(f"there is no {program}")


def test_programs_of_another_user_s_project_work_for_root(project: Project) -> None:
    if os.geteuid() != 0:
        not_here("only root can give files away")
    for path in (project.directory, *project.directory.rglob("*")):
        os.chown(path, 4321, 4321)
    project.policy("write: .", "exec: find, git")
    done = project.run("find", ".", "-type", "f", options=["-q"])
    _agreed(project, done)
    assert "./data/notes.txt" in done.text
    assert done.stderr == "", done
