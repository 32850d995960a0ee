# SPDX-License-Identifier: MIT
"""The operator's policy, which narrows every sandbox of a server as it narrows every run."""

from __future__ import annotations

from pathlib import Path

from agentbox.engine.box_world import BoxWorld
from agentbox.engine.policy_world import read_policy_file
from agentbox.engine.run_policy import SETTING
from agentbox.errors import ConfigError, PolicyError
from agentbox.isolation.durable import HOME, WORKSPACE
from agentbox.policy.document import canonical_text
from agentbox.policy.parser import parse


def read_ceiling(path: Path | None) -> str | None:
    """Its text, with what it includes written out, so that it says the same wherever it is read; None where there is
    none. Raises ConfigError when it cannot be read, with the line and column of a fault."""
    if path is None:
        return None
    world = BoxWorld((), ())
    try:
        policy = parse(
            read_policy_file(str(path)),
            root=WORKSPACE,
            path=str(path.absolute()),
            display=str(path),
            home=HOME,
            resolve=world.resolve,
            find_program=world.find_program,
            libexec_of=world.libexec_of,
            read_include=read_policy_file,
        )
    except OSError as error:
        raise ConfigError(
            f"{SETTING}={path} cannot be read: {error.strerror or error}", hint="name a policy file"
        ) from error
    except PolicyError as error:
        raise ConfigError(f"{SETTING}: {error.message}", hint=error.hint) from error
    return canonical_text(policy)
