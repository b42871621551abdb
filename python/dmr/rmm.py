"""RMM on memory of dmr.

The resource is RMM's ``CallbackMemoryResource``, with which RMM calls Python for each allocation: some
microseconds, which a program that allocates large columns does not notice. A program in C++ has the
same without Python: ``dmr/rmm.hpp`` of the C interface.

A deallocation is ordered on the stream that RMM names, and need not be on the one of the allocation.
Call :func:`retire` before a stream is destroyed: the callbacks get its handle only, and cannot keep it
alive. CUDA's per-thread default stream is refused, because it is another stream in each thread.
"""

from __future__ import annotations

import threading
from typing import Any

import rmm.mr

from ._library import Error
from ._runtime import Runtime, runtime

__all__ = ["resource", "retire", "use"]


def _handle(stream: Any) -> int:
    """Returns the handle of a stream, by the protocol that RMM, CuPy and cuda.core have."""
    version, handle = stream.__cuda_stream__()
    if version != 0:
        raise TypeError(f"{stream!r} has version {version} of the stream protocol, this package knows 0")
    return int(handle)


class _Callbacks:
    """What RMM calls for the memory of one device."""

    def __init__(self, memory: Runtime) -> None:
        self._memory = memory
        # Frees that were refused, usually because a stream captures: address and stream.
        self._refused: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def allocate(self, bytes: int, stream: Any) -> int:
        self._free_refused()
        on = _handle(stream)
        try:
            return self._memory.allocate(bytes, on)
        except Error as error:
            if error.status != "stream_misuse":
                raise
            # Another stream may have the handle of one that was destroyed: this waits for both.
            self._memory.retire_stream(on)
            return self._memory.allocate(bytes, on)

    def deallocate(self, address: int, bytes: int, stream: Any) -> None:
        # RMM ends the process where this raises.
        self._free_refused()
        self._free(address, _handle(stream))

    def _free_refused(self) -> None:
        if not self._refused:
            return
        with self._lock:
            refused, self._refused = self._refused, []
        for address, on in refused:
            self._free(address, on)

    def _free(self, address: int, on: int) -> None:
        try:
            try:
                self._memory.free(address, on)
            except Error as error:
                if error.status != "stream_misuse":
                    raise
                self._memory.retire_stream(on)
                self._memory.free(address, on)
        except Error as error:
            # Nothing is left to free of an address that is not there.
            if error.status != "unknown_address":
                with self._lock:
                    self._refused.append((address, on))


def resource(device: int = 0) -> rmm.mr.CallbackMemoryResource:
    """Returns a resource of RMM whose memory is that of the runtime of a device: for one call, or as
    the upstream of RMM's own resources."""
    callbacks = _Callbacks(runtime(device))
    return rmm.mr.CallbackMemoryResource(callbacks.allocate, callbacks.deallocate)


def use(devices: list[int] | None = None) -> None:
    """From here on RMM's memory on these devices, by default on device 0, is of dmr."""
    for device in [0] if devices is None else devices:
        rmm.mr.set_per_device_resource(device, resource(device))


def retire(stream: Any, device: int = 0) -> None:
    """Ends the use of a stream, which may be destroyed then. Does not wait for its work."""
    runtime(device).retire_stream(_handle(stream))
