# SPDX-License-Identifier: MIT
"""Bodies of requests about sandboxes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from agentbox.server import fields
from agentbox.server.sandboxes import kinds
from agentbox.server.schemas import Closed


class SandboxBody(Closed):
    """A sandbox as it is asked for. Null means the default; above the operator's ceiling the ceiling applies."""

    backend: kinds.BackendName | None = Field(None, description="isolation backend, of those that the operator allows")
    image: kinds.Image | None = Field(None, description="of backends that have images")
    memory_mb: kinds.MemoryMb | None = Field(None, description="of everything in it, in units of 2**20 bytes")
    cpus: kinds.Cpus | None = Field(None, description="processors that it may keep busy")
    pids: kinds.Pids | None = Field(None, description="processes and threads together")
    disk_mb: kinds.DiskMb | None = Field(None, description="its workspace, in units of 2**20 bytes")
    max_output_bytes: kinds.OutputBytes | None = Field(
        None, description="bytes of each stream in the answer of exec: half from the start, half from the end"
    )
    user: kinds.User | None = Field(None, description="who its commands are")
    env: kinds.Environment | None = Field(None, description="variables of every command")
    policy: kinds.Policy | None = Field(None, description="text of a policy, with `net:` rules")
    workspace: kinds.WorkspaceName | None = Field(
        None, description="name of a workspace of this key that is kept when the sandbox is deleted"
    )
    snapshot_id: kinds.SnapshotId | None = Field(None, description="what a new workspace begins with")
    idle_timeout_seconds: kinds.WholeSeconds | None = Field(None, description="unused for so long it loses its box")
    max_lifetime_seconds: kinds.WholeSeconds | None = Field(
        None, description="so long after its start it loses its box"
    )
    exec_timeout_seconds: kinds.SomeSeconds | None = Field(
        None, description="how long the tools for models wait when a call does not say"
    )


# What the validator below refuses, for who reads the schema.
_TWO_INPUTS: JsonDict = {
    "required": ["stdin", "stdin_b64"],
    "properties": {"stdin": {"type": "string"}, "stdin_b64": {"type": "string"}},
}


class CommandBody(Closed):
    """A command of a sandbox."""

    model_config = ConfigDict(json_schema_extra={"not": _TWO_INPUTS})

    command: kinds.ShellText | kinds.Words = Field(description="text for the box's shell, or a list of words")
    stdin: kinds.PlainText | None = Field(None, description="what it reads, as text")
    stdin_b64: Annotated[fields.Base64Text, Field(strict=True)] | None = Field(
        None, description="what it reads, as base64; not beside stdin"
    )
    cwd: kinds.Path | None = Field(None, description="relative to /work")
    env: kinds.Changes | None = Field(None, description="over the sandbox's variables; null takes one out")
    user: kinds.User | None = None
    timeout_seconds: kinds.SomeSeconds | None = Field(None, description="it is ended after so long")
    merged: kinds.Truth = Field(False, description="whether stderr goes to stdout")
    terminal: kinds.Size | None = Field(None, description="rows and columns of a terminal of its own")

    @model_validator(mode="after")
    def _one_input(self) -> CommandBody:
        if self.stdin is not None and self.stdin_b64 is not None:
            raise PydanticCustomError("two_inputs", "stdin and stdin_b64 exclude each other")
        return self


class ExecBody(CommandBody):
    """A command that is waited for."""

    wait_seconds: kinds.Seconds | None = Field(
        None, description="the answer comes after so long at the latest; null waits for the end"
    )


class StartBody(CommandBody):
    """A command that is only started."""

    open_stdin: kinds.Truth = Field(False, description="whether its input stays open for .../stdin")


class KillBody(Closed):
    """How a command is ended."""

    grace_seconds: kinds.GraceSeconds | None = Field(None, description="between TERM and KILL; 5 when it is not said")


class SignalBody(Closed):
    """A signal for the process group of a command."""

    signal: kinds.Signal = Field(description="its name, such as SIGINT")


class ResizeBody(Closed):
    """The size of a terminal."""

    rows: kinds.Length
    columns: kinds.Length


class DirectoryBody(Closed):
    """A directory to be made, with its parents."""

    path: kinds.Path
    mode: kinds.Octal | None = Field(None, description="permission bits as octal digits; 0755 when it is not said")


class MoveBody(Closed):
    """Something that gets another name."""

    path: kinds.Path
    to: kinds.Path


class SnapshotBody(Closed):
    """A snapshot of a workspace."""

    name: kinds.SnapshotName | None = Field(None, description="with a name it outlives the sandbox")
    keep: kinds.Truth | None = Field(None, description="whether it outlives the sandbox in any case")


class RestoreBody(Closed):
    """Which snapshot the workspace becomes."""

    snapshot_id: kinds.SnapshotId


class ForkBody(Closed):
    """How many sandboxes are made of one."""

    count: kinds.Copies | None = Field(None, description="1 when it is not said")
