"""The driver API, for tests: streams, fills and copies by ctypes."""

from __future__ import annotations

import ctypes

_cuda = ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    code = getattr(_cuda, name)(*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


def bind(ordinal: int = 0) -> None:
    """Makes the primary context current on this thread."""
    context = ctypes.c_void_p()
    _call("cuInit", 0)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    _call("cuCtxSetCurrent", context)


def stream() -> int:
    """Makes a stream that the legacy default stream does not order."""
    made = ctypes.c_void_p()
    _call("cuStreamCreate", ctypes.byref(made), 1)
    return made.value or 0


def destroy(made: int) -> None:
    """Destroys a stream."""
    _call("cuStreamDestroy_v2", ctypes.c_void_p(made))


def fill(address: int, byte: int, bytes: int, on: int) -> None:
    """Fills memory on a stream."""
    _call(
        "cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(bytes), ctypes.c_void_p(on)
    )


def read(address: int, bytes: int, on: int) -> bytes:
    """Copies memory to the host on a stream, and waits for it."""
    buffer = ctypes.create_string_buffer(bytes)
    _call(
        "cuMemcpyDtoHAsync_v2", buffer, ctypes.c_uint64(address), ctypes.c_size_t(bytes), ctypes.c_void_p(on)
    )
    _call("cuStreamSynchronize", ctypes.c_void_p(on))
    return buffer.raw


def synchronize(on: int) -> None:
    """Waits for a stream."""
    _call("cuStreamSynchronize", ctypes.c_void_p(on))


def order(first: int, second: int) -> None:
    """Makes the second stream wait for the work of the first one so far."""
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), 2)
    _call("cuEventRecord", event, ctypes.c_void_p(first))
    _call("cuStreamWaitEvent", ctypes.c_void_p(second), event, 0)
    _call("cuEventDestroy_v2", event)


def begin_capture(on: int) -> None:
    """Begins to capture a graph on a stream, in relaxed mode."""
    _call("cuStreamBeginCapture_v2", ctypes.c_void_p(on), 2)


def end_capture(on: int) -> None:
    """Ends the capture, and destroys the graph."""
    graph = ctypes.c_void_p()
    _call("cuStreamEndCapture", ctypes.c_void_p(on), ctypes.byref(graph))
    _call("cuGraphDestroy", graph)


def allocate(bytes: int) -> int:
    """Allocates memory that is not dmr's."""
    address = ctypes.c_uint64()
    _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
    return address.value


def free(address: int) -> None:
    """Frees memory of :func:`allocate`."""
    _call("cuMemFree_v2", ctypes.c_uint64(address))


def record(on: int) -> int:
    """Records a new event on a stream."""
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), 2)
    _call("cuEventRecord", event, ctypes.c_void_p(on))
    return event.value or 0


def wait_event(on: int, event: int) -> None:
    """Makes a stream wait for an event."""
    _call("cuStreamWaitEvent", ctypes.c_void_p(on), ctypes.c_void_p(event), 0)


def destroy_event(event: int) -> None:
    """Destroys an event."""
    _call("cuEventDestroy_v2", ctypes.c_void_p(event))
