# SPDX-License-Identifier: MIT
"""A run behind /v1/run that is recorded for a replay: what it adds to a trace, and the request that is kept with it."""

from __future__ import annotations

import base64
import binascii
import json
import os
from typing import TYPE_CHECKING, Any

from agentbox.engine.keeping import Keeping
from agentbox.engine.processes import Processes
from agentbox.engine.touched import Touched
from agentbox.errors import NotFoundError
from agentbox.isolation.plan import WORKSPACE
from agentbox.light import digests
from agentbox.models import RequestedLimits, RunRequest

if TYPE_CHECKING:
    from agentbox.engine.supervisor import Ending
    from agentbox.models import CapturedStream
    from agentbox.workspace.tree import Tree

_PLAIN = ("code", "language", "snapshot_id", "backend", "policy")


class RunRecording:
    """What one recorded run needs. `directory` is where its bytes are kept."""

    def __init__(self, directory: str) -> None:
        self.seed = os.urandom(32).hex()
        self.keeping = Keeping(directory)
        self.processes = Processes()

    def touched(self, tree: Tree) -> Touched:
        """What the run changes of its workspace."""
        return workspace_touched(tree, self.keeping)

    def streams(self, ending: Ending) -> dict[str, Any]:
        """What the last record says of stdout and stderr."""
        return {
            name: {
                "bytes": stream.total_bytes,
                "sha256": digest_of(stream),
                **({"kept": self.keeping.keep(stream.data)} if stream.data else {}),
            }
            for name, stream in (("stdout", ending.stdout), ("stderr", ending.stderr))
        }


def workspace_touched(tree: Tree, keeping: Keeping) -> Touched:
    """The whole workspace of a box, as its programs see it."""
    return Touched([WORKSPACE], [], keeping, base=tree.fd, prefix=WORKSPACE)


def digest_of(stream: CapturedStream) -> str:
    """The hash of what was kept of a stream: the same cut of the same output."""
    return digests.sha256(stream.data).hexdigest()


def kept_request(request: RunRequest) -> bytes:
    """The request as text, so that it can be made again: code, files, stdin, variables and all."""
    limits = request.limits
    return json.dumps(
        {
            **{name: getattr(request, name) for name in _PLAIN},
            "limits": {name: getattr(limits, name) for name in RequestedLimits.__dataclass_fields__},
            "egress_allowlist": None if request.egress_allowlist is None else list(request.egress_allowlist),
            "stdin": _b64(request.stdin),
            "files": {path: _b64(content) for path, content in request.files.items()},
            "env": dict(request.env),
            "args": list(request.args),
        }
    ).encode()


def request_again(data: bytes, owner: str, run_id: str) -> RunRequest:
    """The request of a recorded run. Raises NotFoundError where what was kept of it is damaged."""
    try:
        found = json.loads(data)
        allowlist = found["egress_allowlist"]
        return RunRequest(
            **{name: found[name] for name in _PLAIN},
            limits=RequestedLimits(**found["limits"]),
            egress_allowlist=None if allowlist is None else tuple(allowlist),
            stdin=base64.b64decode(found["stdin"]),
            files={path: base64.b64decode(content) for path, content in found["files"].items()},
            env=found["env"],
            args=tuple(found["args"]),
            record=True,
            owner=owner,
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise NotFoundError(
            f"what was kept of the request of run {run_id[:64]!r} cannot be read", hint="record it again"
        ) from error


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
