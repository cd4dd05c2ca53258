"""Bytes objects that are filled after they were made: gRPC takes nothing else, and joining copies once more.

Python's C API allows it for an object that nobody else has seen yet (docs.python.org, "Bytes Objects",
PyBytes_FromStringAndSize).
"""

from __future__ import annotations

import ctypes

_new = ctypes.pythonapi.PyBytes_FromStringAndSize
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)

_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)


def uninitialized_bytes(num_bytes: int) -> tuple[bytes, memoryview]:
    """An object with anything in it, and a view to write all of it before the object is used.

    At least two bytes: shorter objects may be shared. The view must not be used after the object is gone.
    """
    assert num_bytes > 1, "shorter bytes may be somebody else's as well"
    made: bytes = _new(None, num_bytes)
    memory = (ctypes.c_ubyte * num_bytes).from_address(_address_of(made))
    return made, memoryview(memory).cast("B")
