# SPDX-License-Identifier: MIT
"""`suppress` and `contextmanager`, which are all that the way of a short command needs of `contextlib`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import contextmanager, suppress
else:

    class suppress:  # noqa: N801 - the standard library's name
        """See `contextlib.suppress`."""

        def __init__(self, *kinds):
            self._kinds = kinds

        def __enter__(self):
            return None

        def __exit__(self, kind, error, trace):
            return kind is not None and issubclass(kind, self._kinds)

    class _Generated:
        def __init__(self, generator):
            self._generator = generator

        def __enter__(self):
            try:
                return next(self._generator)
            except StopIteration:
                raise RuntimeError("the generator of a context yielded nothing") from None

        def __exit__(self, kind, error, trace):
            if kind is None:
                try:
                    next(self._generator)
                except StopIteration:
                    return False
                raise RuntimeError("the generator of a context yielded twice")
            try:
                self._generator.throw(error)
            except StopIteration as stop:
                return stop is not error
            except RuntimeError as other:
                if other is error:
                    error.__traceback__ = trace
                    return False
                # A StopIteration that was thrown in comes out wrapped.
                if isinstance(error, StopIteration) and other.__cause__ is error:
                    error.__traceback__ = trace
                    return False
                raise
            except BaseException as other:
                if other is not error:
                    raise
                error.__traceback__ = trace
                return False
            raise RuntimeError("the generator of a context went on after an exception")

    def contextmanager(function):
        """See `contextlib.contextmanager`."""

        def enter(*values, **named):
            return _Generated(function(*values, **named))

        enter.__name__ = function.__name__
        enter.__doc__ = function.__doc__
        return enter


__all__ = ["contextmanager", "suppress"]
