# SPDX-License-Identifier: MIT
"""The provider `agentbox` of Inspect AI: a durable sandbox for each sample.

`sandbox=("agentbox", "gvisor")` names a backend; a file with a policy's text may follow after a colon
(`"gvisor:rules.policy"`). Without either the sandbox has a kernel of its own.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from agentbox.errors import SandboxError
from agentbox.sandbox.asynchronous import AsyncSandbox
from agentbox.sandbox.core import SandboxCommand
from agentbox.sandbox.spool import Spool

try:
    from inspect_ai.util import SandboxUnavailableError
except ImportError:  # older versions have no word for it
    SandboxUnavailableError = RuntimeError

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_KILL_GRACE_SECONDS = 1.0
# Backends whose boxes have no user but their own; in the others commands are an ordinary user's unless a call says.
_ONE_USER = ("jail",)
_ORDINARY = "1000:1000"
_NO_SUCH_USER = "the box has no such user"


@sandboxenv(name="agentbox")
class AgentboxEnvironment(SandboxEnvironment):
    """One sandbox of a sample."""

    def __init__(self, sandbox: AsyncSandbox, user: str = "") -> None:
        """`user` is whom commands and files are of when a call does not say; empty for the sandbox's own."""
        super().__init__()
        self.sandbox = sandbox
        self._user = user

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """A sandbox, started. Raises SandboxError."""
        del task_name, metadata
        backend, _, policy = str(config or "").partition(":")
        has_users = backend not in _ONE_USER
        sandbox = AsyncSandbox(
            backend=backend or None,
            policy=await asyncio.to_thread(Path(policy).read_text, "utf-8") if policy else None,
            user="root" if has_users else "agent",
        )
        await sandbox.start()
        if not has_users:
            return {"default": cls(sandbox)}
        try:
            done = await sandbox.exec(["chown", _ORDINARY, "/work"])
            if done.exit_code:
                raise SandboxError(f"the workspace cannot be given to {_ORDINARY}: {done.text().text}")
        except BaseException:
            await sandbox.stop()
            raise
        return {"default": cls(sandbox, _ORDINARY)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Stop the sandboxes of a sample."""
        del task_name, config, interrupted
        for environment in environments.values():
            await environment.as_type(cls).sandbox.stop()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """See SandboxEnvironment. A command that runs too long is ended with all that it started."""
        del timeout_retry, concurrency
        stdin = input.encode() if isinstance(input, str) else input
        try:
            done = await self.sandbox.exec(
                cmd,
                stdin=stdin if stdin is not None else False,
                cwd=cwd,
                env=env,
                user=user or self._user,
                merged=False,
                wait=0,
            )
        except PermissionError as error:
            if user is not None and error.filename != cmd[0]:
                raise SandboxUserUnsupportedError(f"commands of this sandbox cannot run as {user}") from error
            raise
        except OSError as error:
            if error.errno == errno.EINVAL and error.filename == _NO_SUCH_USER:
                return ExecResult(False, _NOT_EXECUTABLE, "", f"no user {user} in the sandbox\n")
            if error.errno == errno.ENOENT:
                return ExecResult(False, _NOT_FOUND, "", f"{error.filename}: {error.strerror}\n")
            raise
        except SandboxError as error:
            raise SandboxUnavailableError(error.message) from error
        if not await done.wait(timeout):
            await done.kill(_KILL_GRACE_SECONDS)
            raise TimeoutError(f"the command did not end within {timeout} s")
        return _result(done)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """See SandboxEnvironment."""
        try:
            await self.sandbox.files.write(file, contents, user=self._user)
        except SandboxError as error:
            raise SandboxUnavailableError(error.message) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """See SandboxEnvironment."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.sandbox.files.read(file, max_bytes=limit, user=self._user)
        except SandboxError as error:
            raise SandboxUnavailableError(error.message) from error
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
            if error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", file) from error
            raise
        return data.decode() if text else data


def _result(done: SandboxCommand) -> ExecResult[str]:
    limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    texts = []
    for spool in (done.stdout, done.stderr):
        assert spool is not None
        if spool.total > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, _end(spool, limit))
        texts.append(spool.read(0, limit)[1].decode(errors="replace"))
    code = done.exit_code if done.exit_code is not None else _NOT_EXECUTABLE
    return ExecResult(code == 0, code, *texts)


def _end(spool: Spool, size: int) -> str:
    return spool.read(max(0, spool.total - size), size)[1].decode(errors="replace")
