# SPDX-License-Identifier: MIT
"""The small world in which the vectors of `spec/policy` are read: links, programs and files that stand in a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbox.policy import questions
from agentbox.policy.document import Policy
from agentbox.policy.parser import parse

MAX_LINKS = 40


class World:
    """What a vector says of the world around its policy."""

    def __init__(self, case: Mapping[str, Any], root: str, home: str | None) -> None:
        self.root = root
        self.home = home
        self.links: Mapping[str, str] = case.get("links", {})
        self.path: Mapping[str, str] = case.get("programs", {})
        self.libexec: Mapping[str, list[str]] = case.get("libexec", {})
        self.files: Mapping[str, str] | None = case.get("files")

    def resolve(self, path: str) -> str:
        """An absolute path without links, `.` and `..`; what does not exist stays as it is."""
        waiting = path.split("/")[::-1]
        parts: list[str] = []
        followed = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                del parts[-1:]
            elif part not in ("", "."):
                target = self.links.get("/" + "/".join([*parts, part]))
                if target is None:
                    parts.append(part)
                    continue
                followed += 1
                if followed > MAX_LINKS:
                    raise OSError("too many links")
                if target.startswith("/"):
                    parts = []
                waiting += target.split("/")[::-1]
        return "/" + "/".join(parts)

    def find_program(self, name: str) -> str | None:
        """The resolved file of a bare name on the PATH, or of an absolute path of one of its programs."""
        if "/" not in name:
            found = self.path.get(name)
            return None if found is None else self.resolve(found)
        resolved = self.resolve(name)
        return resolved if resolved in {self.resolve(program) for program in self.path.values()} else None

    def program_of(self, argv0: str) -> str | None:
        """What would run for an argv[0] that is looked up as execvp does."""
        return self.find_program(argv0 if "/" not in argv0 or argv0.startswith("/") else f"{self.root}/{argv0}")

    def read_include(self, path: str) -> str:
        if self.files is None or path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    def parse(self, text: str | bytes) -> Policy:
        """The policy of a text in this world."""
        return parse(
            text,
            root=self.root,
            home=self.home,
            resolve=self.resolve,
            find_program=self.find_program,
            libexec_of=lambda program: tuple(self.libexec.get(program, ())),
            read_include=None if self.files is None else self.read_include,
        )

    def question(self, ask: Mapping[str, Any]) -> questions.Question:
        """The question of a vector; a path in it is resolved as an asker would, from `root`."""
        verb = ask["verb"]
        if verb in ("read", "write"):
            path = self.resolve(ask["path"] if ask["path"].startswith("/") else f"{self.root}/{ask['path']}")
            if verb == "read":
                return questions.Read(path, ask.get("identity"))
            return questions.Write(path, ask.get("size_bytes"), ask.get("identity"), ask.get("whole", False))
        if verb == "resolve":
            return questions.Resolve(ask["host"])
        if verb == "connect":
            return questions.Connect(ask["host"], ask["port"], ask.get("address"), ask.get("now_seconds"))
        if verb == "unix":
            path = ask["path"]
            return questions.Unix(path if path.startswith("@") else self.resolve(path), ask.get("now_seconds"))
        if verb == "exec":
            argv = tuple(ask["argv"])
            program = ask["program"] if "program" in ask else self.program_of(argv[0]) if argv else None
            return questions.Exec(argv, program, ask.get("parent"))
        if verb == "env":
            return questions.Env(ask["name"])
        raise ValueError(f"no question {verb!r}")
