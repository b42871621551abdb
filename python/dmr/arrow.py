"""Columns of Arrow in GPU memory, from and to other libraries, by Arrow's C device interface.

>>> column = dmr.from_arrow(table_of_cudf)      # an object with ``__arrow_c_device_array__``
>>> column.wait(stream)                         # before work on a stream of yours reads it
>>> other_library.from_arrow(column)            # a column has that method, too
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from typing import Any, Sequence

from ._library import declare, library
from ._runtime import Runtime
from ._runtime import runtime as runtime_of

_SCHEMA = b"arrow_schema"
_DEVICE_ARRAY = b"arrow_device_array"


class _Schema(Structure):
    """``struct ArrowSchema``."""


_Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", c_void_p),
    ("dictionary", c_void_p),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class _Array(Structure):
    """``struct ArrowArray``."""


_Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", c_void_p),
    ("children", c_void_p),
    ("dictionary", c_void_p),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class _DeviceArray(Structure):
    """``struct ArrowDeviceArray``."""

    _fields_ = [
        ("array", _Array),
        ("device_id", c_int64),
        ("device_type", c_int32),
        ("sync_event", c_void_p),
        ("reserved", c_int64 * 3),
    ]


class _Info(Structure):
    """``dmr_column_info``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("format", c_char_p),
        ("name", c_char_p),
        ("flags", c_int64),
        ("length", c_uint64),
        ("offset", c_uint64),
        ("null_count", c_int64),
        ("buffers", c_uint64),
        ("children", c_uint64),
        ("has_dictionary", c_uint64),
    ]


class _Parts(Structure):
    """``dmr_column_parts``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("format", c_char_p),
        ("name", c_char_p),
        ("flags", c_int64),
        ("length", c_uint64),
        ("offset", c_uint64),
        ("null_count", c_int64),
        ("buffers", POINTER(c_uint64)),
        ("buffer_count", c_uint64),
        ("children", POINTER(c_void_p)),
        ("child_count", c_uint64),
        ("dictionary", c_void_p),
    ]


declare(
    {
        "dmr_column_import": [c_void_p, c_void_p, c_void_p, c_void_p, POINTER(c_void_p)],
        "dmr_column_export": [c_void_p, c_void_p, c_void_p, c_void_p, c_void_p],
        "dmr_column_create": [c_void_p, POINTER(_Parts), POINTER(c_void_p)],
        "dmr_column_describe": [c_void_p, c_void_p, POINTER(_Info)],
        "dmr_column_buffer": [c_void_p, c_void_p, c_size_t, POINTER(c_uint64), POINTER(c_uint64)],
        "dmr_column_child": [c_void_p, c_void_p, c_size_t, POINTER(c_void_p)],
        "dmr_column_wait": [c_void_p, c_void_p, c_void_p],
        "dmr_column_record_read": [c_void_p, c_void_p, c_void_p],
        "dmr_column_destroy": [c_void_p, c_void_p],
    }
)


class Column:
    """A column: imported by :func:`from_arrow`, or made of blocks by :func:`column`.

    Its buffers are only read. Work of streams of yours is ordered by two calls: :meth:`wait` before
    it, :meth:`record_read` behind it. Another library gets the column by its method
    ``__arrow_c_device_array__``, as often as it asks; the memory stays until all are done with it.
    """

    def __init__(self, runtime: Runtime, handle: c_void_p, stream: int) -> None:
        self._runtime = runtime
        self._handle = handle
        #: The stream that an export waits on.
        self.stream = stream
        info = _Info(sizeof(_Info), 1)
        self._call("dmr_column_describe", byref(info))
        #: The type, as a format string of Arrow.
        self.format: str = info.format.decode()
        #: The name; empty for none.
        self.name: str = info.name.decode(errors="replace")
        #: The flags of Arrow's schema.
        self.flags: int = info.flags
        #: The rows in the buffers before the first one.
        self.offset: int = info.offset
        #: The number of null rows; ``None`` if it is not known.
        self.null_count: int | None = None if info.null_count < 0 else info.null_count
        self._length = info.length
        self._buffers = info.buffers
        self._children = info.children
        self._has_dictionary = bool(info.has_dictionary)

    def _call(self, name: str, *arguments: Any) -> None:
        library().call(name, self._runtime.handle, self._handle, *arguments)

    def __len__(self) -> int:
        return self._length

    @property
    def buffers(self) -> list[tuple[int, int]]:
        """The address and the size in bytes of each buffer, as Arrow lists them, without the sizes
        of the data of binary views; (0, 0) for absent ones."""
        found = []
        for index in range(self._buffers):
            address = c_uint64()
            size = c_uint64()
            self._call("dmr_column_buffer", index, byref(address), byref(size))
            found.append((address.value, size.value))
        return found

    @property
    def children(self) -> list[Column]:
        """The columns below."""
        return [self._below(index) for index in range(self._children)]

    @property
    def dictionary(self) -> Column | None:
        """The values, if this column has their indices."""
        return self._below(self._children) if self._has_dictionary else None

    def _below(self, index: int) -> Column:
        handle = c_void_p()
        self._call("dmr_column_child", index, byref(handle))
        return Column(self._runtime, handle, self.stream)

    def wait(self, stream: int) -> None:
        """Makes a stream wait for the work that has written the column, and all below it."""
        self._call("dmr_column_wait", stream)

    def record_read(self, stream: int) -> None:
        """Records that the work which was submitted to a stream so far reads the column, and all
        below it: its memory is released after that work."""
        self._call("dmr_column_record_read", stream)

    def close(self) -> None:
        """Gives the column up. Its memory is released after the recorded reads, when no export has
        it any more."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            library().call("dmr_column_destroy", self._runtime.handle, handle)

    def __arrow_c_device_array__(self, requested_schema: object = None, **kwargs: object) -> tuple[object, object]:
        """Returns two capsules, with Arrow's schema and device array. ``requested_schema`` has no
        effect: columns have one representation."""
        unknown = [name for name, value in kwargs.items() if value is not None]
        if unknown:
            raise NotImplementedError(f"arguments that this column does not have: {', '.join(unknown)}")
        array = _DeviceArray()
        schema = _Schema()
        self._call("dmr_column_export", self.stream, byref(array), byref(schema))
        return _capsule(schema, _SCHEMA), _capsule(array, _DEVICE_ARRAY)

    def __enter__(self) -> Column:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # The runtime is closed, and has destroyed the column.
            pass

    def __repr__(self) -> str:
        return f"<dmr.Column {self.name!r} of type {self.format!r}, {len(self)} rows>"


def from_arrow(column: Any, *, stream: int = 0, runtime: Runtime | None = None) -> Column:
    """Imports a column of another library, without a copy: an object with
    ``__arrow_c_device_array__``, such as a table or a column of cudf.

    ``stream`` waits for the work of its producer, and so does what :meth:`Column.wait` orders. The
    thread waits for it only if the type has values of variable size.
    """
    export = getattr(column, "__arrow_c_device_array__", None)
    if export is None:
        raise TypeError(
            f"{type(column).__name__} has no __arrow_c_device_array__: pass a column in GPU memory, and copy "
            "one of the host to the device before"
        )
    runtime = runtime or runtime_of()
    schema, array = export()
    handle = c_void_p()
    library().call(
        "dmr_column_import",
        runtime.handle,
        _get_pointer(array, _DEVICE_ARRAY),
        _get_pointer(schema, _SCHEMA),
        stream,
        byref(handle),
    )
    return Column(runtime, handle, stream)


def column(
    format: str,
    length: int,
    buffers: Sequence[int],
    *,
    children: Sequence[Column] = (),
    dictionary: Column | None = None,
    name: str = "",
    flags: int = 0,
    offset: int = 0,
    null_count: int | None = None,
    stream: int = 0,
    runtime: Runtime | None = None,
) -> Column:
    """Makes a column of blocks of a runtime, by their addresses: 0 for absent ones. The blocks are
    the column's from then on, and are freed with it.

    ``format`` is Arrow's format string, and ``buffers`` are as Arrow lists them for it: validity
    and values for numbers. ``stream`` is the one that exports of the column wait on.
    """
    runtime = runtime or runtime_of()
    parts = _Parts(sizeof(_Parts), 1)
    parts.format = format.encode()
    parts.name = name.encode()
    parts.flags = flags
    parts.length = length
    parts.offset = offset
    parts.null_count = -1 if null_count is None else null_count
    addresses = (c_uint64 * len(buffers))(*buffers)
    parts.buffers = addresses
    parts.buffer_count = len(buffers)
    handles = (c_void_p * len(children))(*(child._handle.value for child in children))
    parts.children = handles
    parts.child_count = len(children)
    parts.dictionary = dictionary._handle if dictionary is not None else None
    handle = c_void_p()
    library().call("dmr_column_create", runtime.handle, byref(parts), byref(handle))
    return Column(runtime, handle, stream)


_python = ctypes.pythonapi
_python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, c_char_p]
_python.PyCapsule_GetPointer.restype = c_void_p
_malloc = ctypes.CDLL(None).malloc
_malloc.argtypes = [c_size_t]
_malloc.restype = c_void_p


def _capsule(struct: Structure, name: bytes) -> object:
    """Moves a struct into a capsule. The name is a constant, which a capsule does not copy."""
    address = _malloc(sizeof(struct))
    if address is None:
        raise MemoryError
    ctypes.memmove(address, ctypes.addressof(struct), sizeof(struct))
    # A native function: one of Python cannot run while the exception of a consumer is raised.
    return _python.PyCapsule_New(address, name, library().address_of("dmr_capsule_destroy"))


def _get_pointer(capsule: object, name: bytes) -> int:
    return _python.PyCapsule_GetPointer(capsule, name)
