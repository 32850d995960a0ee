# SPDX-License-Identifier: MIT
"""The tool text_editor_20250728: view, create, str_replace and insert, on files of the sandbox."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentbox.errors import AgentboxError
from agentbox.sandbox.file_info import FileInfo
from agentbox.sandbox.texts import shortened

if TYPE_CHECKING:
    from agentbox.sandbox.local import LocalSandbox

EDITOR_TOOL: Mapping[str, Any] = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
_MAX_FILE_BYTES = 16 << 20
_SHOWN_LEVELS = 2


class _EditError(Exception):
    """What the model is told."""


async def edit(sandbox: LocalSandbox, arguments: Mapping[str, Any]) -> str:
    """Answer a call of the tool. Faults of the model, and of the file, are answers that begin with `Error:`."""
    command = arguments.get("command")
    answers = {"view": _view, "create": _create, "str_replace": _replace, "insert": _insert}
    if command not in answers:
        return f"Error: unknown command {command!r}: use one of {', '.join(answers)}"
    try:
        async with sandbox.editing:
            return await answers[str(command)](sandbox, _text(arguments, "path"), arguments)
    except _EditError as fault:
        return f"Error: {fault}"
    except FileNotFoundError:
        return "Error: File not found"
    except PermissionError:
        return f"Error: Permission denied. Cannot {'read' if command == 'view' else 'write to'} file."
    except IsADirectoryError:
        return "Error: it is a directory"
    except UnicodeDecodeError:
        return "Error: the file is not UTF-8 text; use bash for it"
    except OSError as error:
        return f"Error: {error.strerror or error}"
    except AgentboxError as error:
        return f"Error: {error.message}{f' ({error.hint})' if error.hint else ''}"


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise _EditError(f"`{name}` must be given, as text")
    return value


async def _read(sandbox: LocalSandbox, path: str) -> str:
    return (await sandbox.files.read(path, max_bytes=_MAX_FILE_BYTES)).decode()


async def _view(sandbox: LocalSandbox, path: str, arguments: Mapping[str, Any]) -> str:
    try:
        text = await _read(sandbox, path)
    except IsADirectoryError:
        return await _view_directory(sandbox, path)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    first, last = 1, len(lines)
    chosen = arguments.get("view_range")
    if chosen is not None:
        if not (isinstance(chosen, list) and len(chosen) == 2 and all(isinstance(one, int) for one in chosen)):
            raise _EditError("`view_range` must be two line numbers")
        first, last = chosen
        last = len(lines) if last == -1 else min(last, len(lines))
        if not 1 <= first <= max(1, len(lines)) or last < first - 1:
            raise _EditError(f"`view_range` {chosen} is not within the file's {len(lines)} lines")
    shown = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))
    limit = arguments.get("max_characters")
    return shortened(shown, limit) if isinstance(limit, int) and limit > 1 else shortened(shown)


async def _view_directory(sandbox: LocalSandbox, path: str) -> str:
    base = posixpath.normpath(posixpath.join("/work", path))
    found = [FileInfo(base, "directory", 0, 0, 0.0, 0, 0)]
    pending = [(base, 1)]
    while pending:
        directory, level = pending.pop()
        for entry in await sandbox.files.list(directory):
            if entry.name.startswith(".") or entry.name == "node_modules":
                continue
            found.append(entry)
            if entry.kind == "directory" and level < _SHOWN_LEVELS:
                pending.append((entry.path, level + 1))
    names = sorted(entry.path + ("/" if entry.kind == "directory" else "") for entry in found)
    return shortened(f"Files and directories up to {_SHOWN_LEVELS} levels deep in {path}:\n" + "\n".join(names))


async def _create(sandbox: LocalSandbox, path: str, arguments: Mapping[str, Any]) -> str:
    await sandbox.files.write(path, _text(arguments, "file_text"))
    return f"File created successfully at: {path}"


async def _replace(sandbox: LocalSandbox, path: str, arguments: Mapping[str, Any]) -> str:
    old = _text(arguments, "old_str")
    new = _text(arguments, "new_str") if arguments.get("new_str") is not None else ""
    if not old:
        raise _EditError("`old_str` is empty")
    text = await _read(sandbox, path)
    count = text.count(old)
    if count == 0:
        raise _EditError("No match found for replacement. Please check your text and try again.")
    if count > 1:
        raise _EditError(
            f"Found {count} matches for replacement text. Please provide more context to make a unique match."
        )
    await sandbox.files.write(path, text.replace(old, new))
    return "Successfully replaced text at exactly one location."


async def _insert(sandbox: LocalSandbox, path: str, arguments: Mapping[str, Any]) -> str:
    line = arguments.get("insert_line")
    added = _text(arguments, "insert_text")
    text = await _read(sandbox, path)
    lines = text.splitlines(keepends=True)
    if not isinstance(line, int) or isinstance(line, bool) or not 0 <= line <= len(lines):
        raise _EditError(f"`insert_line` must be from 0 to {len(lines)}, the lines of the file")
    if line and not lines[line - 1].endswith(("\n", "\r")):
        lines[line - 1] += "\n"
    if not added.endswith("\n") and line < len(lines):
        added += "\n"
    await sandbox.files.write(path, "".join([*lines[:line], added, *lines[line:]]))
    return f"Successfully inserted text after line {line}."
