# SPDX-License-Identifier: MIT
"""What of `ctypes` is used here, over the same compiled module: importing the whole takes twice as long, before every
run. Each name means what it means there; where an interpreter's compiled module is another, `ctypes` is used."""

from __future__ import annotations

TYPE_CHECKING = False
_over_its_module = False
if not TYPE_CHECKING:
    try:
        from _ctypes import (
            FUNCFLAG_CDECL,
            FUNCFLAG_PYTHONAPI,
            FUNCFLAG_USE_ERRNO,
            CFuncPtr,
            Structure,
            _memmove_addr,
            _memset_addr,
            _SimpleCData,
            _string_at_addr,
            addressof,
            byref,
            dlopen,
            get_errno,
            set_errno,
            sizeof,
        )

        def _simple(name, letter):
            return type(_SimpleCData)(name, (_SimpleCData,), {"_type_": letter})

        _char, _object = _simple("c_char", "c"), _simple("py_object", "O")
        c_char_p, c_void_p = _simple("c_char_p", "z"), _simple("c_void_p", "P")
        c_ushort, c_int, c_uint32 = _simple("c_ushort", "H"), _simple("c_int", "i"), _simple("c_uint", "I")
        c_long, c_ulong = _simple("c_long", "l"), _simple("c_ulong", "L")
        c_int32 = c_int
        # Of the systems that boxes run on; others have all of `ctypes`.
        if (sizeof(c_int), sizeof(c_long)) != (4, 8):
            raise ImportError("this machine's integers have other sizes")
        c_uint64 = c_size_t = c_ulong

        def _kind_of_function(flags, restype):
            return type(CFuncPtr)("Function", (CFuncPtr,), {"_flags_": flags, "_restype_": restype})

        class CDLL:
            """A library of C; its functions are its attributes."""

            def __init__(self, name, use_errno=False):
                self._handle = dlopen(name, 0)
                self._kind = _kind_of_function(FUNCFLAG_CDECL | (FUNCFLAG_USE_ERRNO if use_errno else 0), c_int)

            def __getattr__(self, name):
                if name[:2] == "__":
                    raise AttributeError(name)
                function = self.__dict__[name] = self._kind((name, self))
                return function

        def _at(address, flags, restype, *argtypes):
            function = _kind_of_function(flags, restype)(address)
            function.argtypes = argtypes
            return function

        memmove = _at(_memmove_addr, FUNCFLAG_CDECL, c_void_p, c_void_p, c_void_p, c_size_t)
        memset = _at(_memset_addr, FUNCFLAG_CDECL, c_void_p, c_void_p, c_int, c_size_t)
        _string_at = _at(_string_at_addr, FUNCFLAG_CDECL | FUNCFLAG_PYTHONAPI, _object, c_void_p, c_int)

        def string_at(ptr, size=-1):
            """The bytes there, to the first zero without a size."""
            return _string_at(ptr, size)

        def create_string_buffer(init, size=None):
            """A writable array: so many zeros, or bytes with a zero behind them."""
            if isinstance(init, int):
                return (_char * init)()
            buffer = (_char * (len(init) + 1 if size is None else size))()
            buffer.value = init
            return buffer

        _over_its_module = True
    except (AttributeError, ImportError, TypeError):
        pass
if not _over_its_module:
    from ctypes import (
        CDLL,
        Structure,
        addressof,
        byref,
        c_char_p,
        c_int,
        c_int32,
        c_long,
        c_size_t,
        c_uint32,
        c_uint64,
        c_ulong,
        c_ushort,
        c_void_p,
        create_string_buffer,
        get_errno,
        memmove,
        memset,
        set_errno,
        sizeof,
        string_at,
    )

__all__ = [
    "CDLL",
    "Structure",
    "addressof",
    "byref",
    "c_char_p",
    "c_int",
    "c_int32",
    "c_long",
    "c_size_t",
    "c_uint32",
    "c_uint64",
    "c_ulong",
    "c_ushort",
    "c_void_p",
    "create_string_buffer",
    "get_errno",
    "memmove",
    "memset",
    "set_errno",
    "sizeof",
    "string_at",
]
