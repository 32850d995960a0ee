# SPDX-License-Identifier: MIT
"""What `agentbox run` uses in place of modules whose import takes longer than the program that it runs.

A type checker sees the standard library's names. At run time `socket`, `signal` and `contextlib` are thin layers over
the same C modules, or the few lines of them that are used here. `asyncio` is the standard library's, unless the front
door of a short command called `choose` before anything used it: then it is `loop`, which runs the same coroutines.
docs/design/adr/0019-a-run-opens-by-a-light-door.md tells what each costs and why.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import contextlib
    import signal
    import socket
    from typing import Any
else:

    class _Loop:
        """Whichever of the two is chosen, from the first use on."""

        light = False

        def __getattr__(self, name):
            if self.light:
                from agentbox.light import loop as module
            else:
                import asyncio as module
            found = self.__dict__[name] = getattr(module, name)
            return found

    asyncio = _Loop()

    def __getattr__(name):
        if name == "signal":
            # The same numbers and functions; the other module gives them names of a class of their own.
            import _signal as module
        elif name == "socket":
            from agentbox.light import sockets as module
        elif name == "contextlib":
            from agentbox.light import contexts as module
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = module
        return module


def choose() -> None:
    """Let coroutines of this process run on the light loop. Raises RuntimeError when one may be running already."""
    loop: Any = asyncio
    if loop.__dict__:
        raise RuntimeError("an event loop is in use already")
    type(loop).light = True


__all__ = ["asyncio", "choose", "contextlib", "signal", "socket"]
