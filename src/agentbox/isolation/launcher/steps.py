# SPDX-License-Identifier: MIT
"""Named steps of building a box, so that a refusal of the kernel says what it refused."""

from __future__ import annotations

from agentbox.light import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class StepError(Exception):
    """A step of building the box failed; carries the step's name."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(f"{step}: {error}")
        self.step = step
        self.errno = error.errno or 0
        self.text = f"{step}: {error}"


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Turn an OSError of the block into a StepError of that name."""
    try:
        yield
    except OSError as error:
        raise StepError(name, error) from error
