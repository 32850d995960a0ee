# SPDX-License-Identifier: MIT
"""Operations on files of sandboxes, as the OpenAPI document has them."""

from __future__ import annotations

from functools import partial

from agentbox.server.sandboxes.openapi_parts import (
    BODY,
    BYTES,
    FILES,
    LARGEST_WHOLE,
    ONE,
    SANDBOX,
    Json,
    answer,
    choice,
    json_body,
    operation,
    path_parameters,
    query,
    raw_body,
    ref,
    user_parameter,
    whole,
)


def files(*, keyed: bool) -> Json:
    """All of them."""
    make = partial(operation, keyed=keyed)
    base = f"{ONE}/files"
    return {
        base: {
            "parameters": [SANDBOX],
            "get": make(
                "read_file",
                "A file's bytes",
                {"200": answer("They follow", BYTES, "application/octet-stream")},
                *("404", "422", *FILES),
                parameters=[
                    *path_parameters(),
                    query("offset", whole(0, LARGEST_WHOLE, 0), "from this byte on"),
                    query("length", whole(-1, LARGEST_WHOLE, -1), "at most so many bytes; -1 is up to the end"),
                ],
            ),
            "put": make(
                "write_file",
                "Write a file, with its parents",
                {"204": answer("It is written")},
                *("404", "422", *FILES, *BODY),
                parameters=[
                    *path_parameters(),
                    query("mode", {"type": "string", "pattern": "^0?[0-7]{3}$"}, "permission bits as octal digits"),
                    query(
                        "how",
                        choice("replace", "append", "new"),
                        "replace it at once, append to it, or refuse where it is there",
                    ),
                ],
                body=raw_body("application/octet-stream", "its content"),
            ),
            "delete": make(
                "remove_file",
                "Remove a file, or a directory with all that is in it",
                {"204": answer("It is gone")},
                *("404", "422", *FILES),
                parameters=path_parameters(),
            ),
        },
        f"{base}/info": {
            "parameters": [SANDBOX],
            "get": make(
                "file_info",
                "What is at a path; of a link, the link itself",
                {"200": answer("What is known", ref("FileInfo"))},
                *("404", "422", *FILES),
                parameters=path_parameters(),
            ),
        },
        f"{base}/list": {
            "parameters": [SANDBOX],
            "get": make(
                "list_files",
                "What is in a directory",
                {"200": answer("By path", ref("FileList"))},
                *("404", "413", "422", *FILES),
                parameters=[
                    *path_parameters(required=False),
                    query("depth", whole(-1, 256, 1), "levels; -1 is all of them"),
                    query("max_entries", whole(1, 100_000, 100_000), "more are refused"),
                ],
            ),
        },
        f"{base}/archive": {
            "parameters": [SANDBOX],
            "get": make(
                "download_directory",
                "A directory as tar",
                {"200": answer("It follows", BYTES, "application/x-tar")},
                *("400", "404", "422", *FILES),
                parameters=path_parameters(required=False),
            ),
            "put": make(
                "upload_directory",
                "Unpack tar into a directory, which is made",
                {"204": answer("It is unpacked")},
                *("400", "404", "422", *FILES, *BODY),
                parameters=path_parameters(required=False),
                body=raw_body("application/octet-stream", "the archive"),
            ),
        },
        f"{base}/directory": {
            "parameters": [SANDBOX],
            "post": make(
                "make_directory",
                "Make a directory with its parents",
                {"204": answer("It is there")},
                *("404", "422", "429", *FILES, *BODY),
                parameters=[user_parameter()],
                body=json_body("DirectoryBody"),
            ),
        },
        f"{base}/move": {
            "parameters": [SANDBOX],
            "post": make(
                "move_file",
                "Give something another name, over what has that name",
                {"204": answer("It has it")},
                *("404", "422", "429", *FILES, *BODY),
                parameters=[user_parameter()],
                body=json_body("MoveBody"),
            ),
        },
    }
