"""The functions of ``libdmr_capi.so``, declared for ctypes, and its statuses as exceptions."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Type

FOLDER = Path(__file__).resolve().parent
#: The library that is loaded, the shim that PyTorch calls, and the simulated driver.
LIBRARY = FOLDER / "lib" / "libdmr_capi.so"
TORCH_SHIM = FOLDER / "lib" / "libdmr_torch.so"
SIMULATED_DRIVER = FOLDER / "lib" / "simulated" / "libcuda.so.1"

#: The version of the C interface that this package was written for.
INTERFACE_VERSION = 1


class Error(Exception):
    """An error of the library. ``status`` is its name in the C interface, such as ``driver``."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class OutOfMemory(Error, MemoryError):
    """The device has not enough free memory, or the request exceeds what is left of a limit."""


class InvalidArgument(Error, ValueError):
    """An argument or a setting that is not one."""


class StreamCapturing(Error):
    """The stream captures a graph, which cannot contain the call."""


class ForkedProcess(Error):
    """This process was forked after a runtime was made; CUDA does not survive a fork."""


class DeviceLost(Error):
    """The device is lost after an error that the driver repeats for every call."""


EXCEPTIONS: dict[str, Type[Error]] = {
    "invalid_argument": InvalidArgument,
    "out_of_memory": OutOfMemory,
    "out_of_budget": OutOfMemory,
    "stream_capturing": StreamCapturing,
    "forked_process": ForkedProcess,
    "device_lost": DeviceLost,
}


class Config(Structure):
    """``dmr_config``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("device", c_uint32),
        ("backend", c_uint32),
        ("compact", c_uint32),
        ("statistics", c_uint32),
        ("max_streams", c_uint32),
        ("spill", c_uint32),
        ("page_bytes", c_uint64),
        ("budget_bytes", c_uint64),
        ("shared_budget_bytes", c_uint64),
        ("shared_budget_group", c_char_p),
        ("log_path", c_char_p),
    ]


class RawUsage(Structure):
    """``dmr_usage``."""

    _fields_ = [("size", c_uint32), ("version", c_uint32)] + [
        (name, c_uint64)
        for name in ("live", "retired", "reserved", "total_allocated", "total_freed", "limit", "remaining", "spilled")
    ]


class RawCounter(Structure):
    """``dmr_counter``."""

    _fields_ = [("current", c_uint64), ("peak", c_uint64), ("total", c_uint64)]


class RawStatistics(Structure):
    """``dmr_statistics``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("bytes", RawCounter),
        ("allocations", RawCounter),
        ("frees", c_uint64),
        ("failures", c_uint64),
    ]


class RawBlock(Structure):
    """``dmr_block``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("stream", c_void_p),
        ("tag", c_char * 136),
    ]


class RawTensor(Structure):
    """``dmr_tensor_info``."""

    _fields_ = [
        ("size", c_uint32),
        ("version", c_uint32),
        ("address", c_uint64),
        ("bytes", c_uint64),
        ("first_element", c_uint64),
        ("type_code", c_uint32),
        ("type_bits", c_uint32),
        ("type_lanes", c_uint32),
        ("dimensions", c_uint32),
        ("read_only", c_uint32),
        ("reserved", c_uint32),
        ("shape", c_int64 * 64),
        ("strides", c_int64 * 64),
    ]


# By name: the arguments. Each function returns a status.
_FUNCTIONS: dict[str, list[Any]] = {
    "dmr_config_init": [POINTER(Config), c_size_t],
    "dmr_runtime_create": [POINTER(Config), POINTER(c_void_p)],
    "dmr_runtime_destroy": [c_void_p],
    "dmr_stream_retire": [c_void_p, c_void_p],
    "dmr_allocate": [c_void_p, c_size_t, c_void_p, POINTER(c_uint64)],
    "dmr_allocate_tagged": [c_void_p, c_size_t, c_void_p, c_char_p, POINTER(c_uint64)],
    "dmr_free": [c_void_p, c_uint64],
    "dmr_free_on": [c_void_p, c_uint64, c_void_p],
    "dmr_record_use": [c_void_p, c_uint64, c_void_p, c_uint32],
    "dmr_wait_for_uses": [c_void_p, c_uint64, c_void_p, c_uint32],
    "dmr_recording_start": [c_char_p, c_char_p],
    "dmr_recording_write": [c_char_p],
    "dmr_recording_stop": [],
    "dmr_tensor_create": [
        c_void_p,
        c_uint8,
        c_uint8,
        c_uint16,
        POINTER(c_int64),
        c_size_t,
        c_void_p,
        c_char_p,
        POINTER(c_void_p),
    ],
    "dmr_tensor_from_dlpack": [c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p, POINTER(c_void_p)],
    "dmr_tensor_to_dlpack": [c_void_p, c_void_p, c_uint32, c_uint32, c_void_p, POINTER(c_void_p)],
    "dmr_tensor_describe": [c_void_p, c_void_p, POINTER(RawTensor)],
    "dmr_tensor_destroy": [c_void_p, c_void_p],
    "dmr_dlpack_delete": [c_void_p, c_uint32],
    "dmr_runtime_usage": [c_void_p, POINTER(RawUsage)],
    "dmr_runtime_statistics": [c_void_p, POINTER(RawStatistics)],
    "dmr_runtime_snapshot": [c_void_p, POINTER(RawBlock), c_size_t, c_size_t, POINTER(c_size_t)],
    "dmr_runtime_reap": [c_void_p, c_int32, POINTER(c_uint64)],
    "dmr_runtime_trim": [c_void_p, c_uint64, POINTER(c_uint64)],
}


def declare(functions: dict[str, list[Any]]) -> None:
    """Adds functions that another module of the package calls, before the library is loaded."""
    _FUNCTIONS.update(functions)



class Library:
    """The loaded library. Each function raises the exception of a status other than ``ok``."""

    def __init__(self, path: os.PathLike[str] | str = LIBRARY) -> None:
        loaded = ctypes.CDLL(os.fspath(path))
        loaded.dmr_version.argtypes = []
        loaded.dmr_version.restype = c_uint32
        if loaded.dmr_version() != INTERFACE_VERSION:
            raise ImportError(
                f"{path} has version {loaded.dmr_version()} of the C interface, this package needs "
                f"{INTERFACE_VERSION}: install the package again"
            )
        loaded.dmr_last_error.argtypes = [c_char_p, c_size_t]
        loaded.dmr_last_error.restype = c_size_t
        loaded.dmr_status_name.argtypes = [c_int32]
        loaded.dmr_status_name.restype = c_char_p
        for name, arguments in _FUNCTIONS.items():
            function = getattr(loaded, name)
            function.argtypes = arguments
            function.restype = c_int32
        self._loaded = loaded

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the C interface by its name."""
        status = getattr(self._loaded, name)(*arguments)
        if status != 0:
            raise self.error(status)

    def address_of(self, name: str) -> int:
        """Returns the address of a function, for other libraries to call."""
        return ctypes.cast(getattr(self._loaded, name), c_void_p).value or 0

    def error(self, status: int) -> Error:
        """Returns the exception of a status, with the text of this thread's last error."""
        name = self._loaded.dmr_status_name(status).decode()
        length = self._loaded.dmr_last_error(None, 0)
        text = ctypes.create_string_buffer(length + 1)
        self._loaded.dmr_last_error(text, length + 1)
        message = text.value.decode(errors="replace")
        kind = EXCEPTIONS.get(name)
        return kind(name, message) if kind else Error(name, message)


_library: Library | None = None


def library() -> Library:
    """Returns the library, which is loaded when it is first needed."""
    global _library
    if _library is None:
        _library = Library()
    return _library
