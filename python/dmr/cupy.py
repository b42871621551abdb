"""CuPy on memory of dmr.

CuPy names no stream, neither to its allocator nor for a free. An allocation is on the stream that is
current in the calling thread, as in CuPy's own pool. A free comes after the work of that stream, and
after that of the stream which is current where the last reference goes away: so an array that was
made on one stream and last used on another is not overwritten, if it is dropped where it was used.
For any other stream call :func:`record_use` before the array is dropped, which CuPy's own pool has no
counterpart for.

CuPy destroys a stream when its last reference goes away. Those that memory was allocated on are kept
until nothing else refers to them and room is needed for others; a ``cupy.cuda.ExternalStream`` must
live as long as the memory that was allocated on it.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import cupy

from ._library import Error, StreamCapturing
from ._runtime import runtime

__all__ = ["record_use", "use"]

_PER_THREAD = 2
_allocator: Any = None


# The streams of CuPy that a runtime has seen: by device and handle.
_streams: dict[tuple[int, int], object] = {}
_streams_lock = threading.Lock()
#: The number of streams from which on unused ones are retired.
_MANY = 64
# The references of a stream that nothing else refers to: the dictionary, and the call that counts.
_UNUSED = 2


def _keep(device: int, stream: cupy.cuda.Stream) -> None:
    """Keeps a stream alive as long as the runtime may use it."""
    key = (device, stream.ptr)
    if key in _streams:
        return
    with _streams_lock:
        if len(_streams) >= _MANY:
            for of, handle in list(_streams):
                if sys.getrefcount(_streams[of, handle]) > _UNUSED:
                    continue
                try:
                    runtime(of).retire_stream(handle)
                except Error:
                    # It captures, or a call uses it: it stays.
                    continue
                del _streams[of, handle]
        _streams[key] = stream


def _current_stream(device: int) -> int:
    stream = cupy.cuda.get_current_stream()
    handle = stream.ptr
    if handle == _PER_THREAD:
        raise Error(
            "stream_misuse",
            "CuPy's per-thread default stream has a different meaning in each thread: unset "
            "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, or make a stream of your own current",
        )
    if handle:
        _keep(device, stream)
    return handle


def _allocate(bytes: int, device: int) -> int:
    try:
        return runtime(device).allocate(bytes, _current_stream(device))
    except MemoryError as error:
        free, total = cupy.cuda.runtime.memGetInfo()
        raise cupy.cuda.memory.OutOfMemoryError(bytes, total - free) from error


# Frees that a capture has refused: device and address.
_refused: list[tuple[int, int]] = []


def _free(address: int, device: int) -> None:
    while True:
        try:
            of, earlier = _refused.pop()
        except IndexError:
            # None is left, also if another thread has taken the last one.
            break
        try:
            runtime(of).free(earlier)
        except StreamCapturing:
            _refused.append((of, earlier))
            break
    try:
        runtime(device).free(address, _current_stream(device))
    except StreamCapturing:
        _refused.append((device, address))


def use() -> None:
    """From here on CuPy's arrays are blocks of dmr."""
    global _allocator
    _allocator = cupy.cuda.PythonFunctionAllocator(_allocate, _free)
    cupy.cuda.set_allocator(_allocator.malloc)


def record_use(array: cupy.ndarray, stream: cupy.cuda.Stream | None = None) -> None:
    """Records that work which was submitted to a stream so far, by default the current one, uses an
    array: its memory is not used again before that work is done."""
    memory = array.data.mem
    device = memory.device_id
    if stream is None:
        on = _current_stream(device)
    else:
        on = stream.ptr
        _keep(device, stream)
    runtime(device).record_use(memory.ptr, on)
