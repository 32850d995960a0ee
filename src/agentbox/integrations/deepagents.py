# SPDX-License-Identifier: MIT
"""A durable sandbox as a backend of LangChain's deepagents (tried with 0.6.12).

with Sandbox() as sandbox:
    agent = create_deep_agent(backend=AgentboxBackend(sandbox))
"""

from __future__ import annotations

import errno

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileOperationError, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from agentbox.errors import SandboxError
from agentbox.sandbox.synchronous import Sandbox

_OUTPUT_BYTES = 16 << 20
_TIMED_OUT = 124


class AgentboxBackend(BaseSandbox):
    """Commands and files of a sandbox that its owner starts and stops."""

    def __init__(self, sandbox: Sandbox, *, timeout_seconds: float = 30 * 60) -> None:
        """`timeout_seconds` ends a command when the call does not say."""
        self._sandbox = sandbox
        self._timeout = timeout_seconds

    @property
    def id(self) -> str:
        """The name of the sandbox."""
        return self._sandbox.container_id or "agentbox"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; one that runs too long is ended with all that it started, and its exit code is 124."""
        try:
            done = self._sandbox.exec(command, timeout=self._timeout if timeout is None else timeout)
        except (SandboxError, OSError, ValueError) as error:
            return ExecuteResponse(output=f"ERROR: {error}", exit_code=1)
        at, data = done.read(0, _OUTPUT_BYTES)
        text = data.decode(errors="replace")
        if done.timed_out:
            return ExecuteResponse(output=f"{text}\nthe command was ended: it ran too long", exit_code=_TIMED_OUT)
        _, more = done.read(at + len(data), 1)
        return ExecuteResponse(output=text, exit_code=done.exit_code, truncated=bool(more))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each with its own answer."""
        answers = []
        for path, content in files:
            problem: FileOperationError | None = None
            if not path.startswith("/"):
                problem = "invalid_path"
            else:
                try:
                    self._sandbox.files.write(path, content)
                except (OSError, ValueError) as error:
                    problem = _word_for(error)
            answers.append(FileUploadResponse(path=path, error=problem))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, each with its own answer."""
        answers = []
        for path in paths:
            if not path.startswith("/"):
                answers.append(FileDownloadResponse(path=path, content=None, error="invalid_path"))
                continue
            try:
                answers.append(FileDownloadResponse(path=path, content=self._sandbox.files.read(path), error=None))
            except (OSError, ValueError) as error:
                answers.append(FileDownloadResponse(path=path, content=None, error=_word_for(error)))
        return answers


def _word_for(error: OSError | ValueError) -> FileOperationError:
    """One of the four words that deepagents knows."""
    code = error.errno if isinstance(error, OSError) else errno.EINVAL
    if code == errno.ENOENT:
        return "file_not_found"
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "permission_denied"
    return "is_directory" if code == errno.EISDIR else "invalid_path"
