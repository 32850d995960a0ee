# SPDX-License-Identifier: MIT
"""The TypeScript package of `sdks/typescript`: what its types are made from, and how it is compiled and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agentbox.config import Settings
from agentbox.server import openapi

PACKAGE = Path(__file__).resolve().parents[1] / "sdks" / "typescript"
TYPES = PACKAGE / "src" / "generated.ts"
BUILD = PACKAGE / "build"
SECONDS = 180


def missing() -> str:
    """What keeps the package from being compiled here; empty when nothing does."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (PACKAGE / "node_modules" / ".bin" / "tsc").exists():
        return "the compiler is not installed: `make test` does it, or `npm ci` in sdks/typescript"
    return ""


def document() -> str:
    """The OpenAPI document that types are made from: a server's with default settings that needs keys."""
    return json.dumps(openapi.document(Settings(), "jail", keyed=True))


def types() -> str:
    """The types of the document, as they should stand in TYPES."""
    return _done("node", "scripts/make-types.mjs", "-", stdin=document())


def compile_tests() -> list[Path]:
    """Compile the package, its tests and the examples of its README; returns the tests and the examples."""
    shutil.rmtree(BUILD, ignore_errors=True)
    examples = BUILD / "source"
    examples.mkdir(parents=True)
    for number, code in enumerate(readme_examples(), 1):
        (examples / f"readme_{number}.ts").write_text(code, encoding="utf-8")
    everything = {
        "extends": "../tsconfig.test.json",
        "include": ["../src", "../test", "source"],
        "exclude": [],
        # Examples import the package by its name, which is compiled at the same time.
        "compilerOptions": {"rootDir": "..", "outDir": ".", "paths": {"agentbox": ["../src/index.ts"]}},
    }
    (BUILD / "tsconfig.json").write_text(json.dumps(everything), encoding="utf-8")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda project: _done("node_modules/.bin/tsc", "-p", project), ("tsconfig.json", str(BUILD))))
    return sorted([*(BUILD / "test").glob("*.test.js"), *(BUILD / "build" / "source").glob("*.js")])


def readme_examples() -> list[str]:
    """The programs that the package's README shows."""
    return re.findall(r"```ts\n(.*?)```", (PACKAGE / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run_file(file: Path, environment: Mapping[str, str]) -> str:
    """Run a compiled test or example; returns what it printed. AssertionError with that when it fails."""
    arguments = ("--test", "--test-reporter=spec") if file.name.endswith(".test.js") else ()
    return _done("node", *arguments, str(file), environment=environment)


def _done(*command: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=PACKAGE,
        env={**os.environ, **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


if __name__ == "__main__":
    TYPES.write_text(types(), encoding="utf-8")
