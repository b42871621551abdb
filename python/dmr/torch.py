"""PyTorch on memory of dmr, in two ways.

``use()`` gives PyTorch's own caching allocator its segments: statistics, snapshots, CUDA graphs and
``torch.cuda.OutOfMemoryError`` go on working, and the limit, the limit of all processes and the log
are dmr's. ``use_as_allocator()`` replaces the caching allocator: each tensor is a block of dmr, and
what PyTorch refuses of such allocators (statistics, snapshots, sharing between processes) is gone.
The guide has a table of what each way loses.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Callable, Iterator

import torch

from ._library import TORCH_SHIM, Error
from ._runtime import Runtime, runtime

__all__ = ["mem_pool", "on_out_of_memory", "use", "use_as_allocator", "using"]

_MakeRoom = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t)

_shim: ctypes.CDLL | None = None
# PyTorch calls these as long as the process runs.
_kept: list[object] = []
_in_use: dict[int, object] = {}


def _connect(device: int) -> Runtime:
    """Makes the runtime of a device the one that the shim's functions use."""
    global _shim
    if _shim is None:
        _shim = ctypes.CDLL(str(TORCH_SHIM))
        _shim.dmr_torch_set_runtime.argtypes = [ctypes.c_int, ctypes.c_void_p]
        _shim.dmr_torch_set_runtime.restype = ctypes.c_int
    # dmr works in the primary context, which PyTorch makes current.
    torch.cuda.init()
    made = runtime(device)
    if _shim.dmr_torch_set_runtime(device, made.handle) != 0:
        raise Error("other", f"PyTorch has no device {device}")
    return made


def _address_of(function: str) -> int:
    assert _shim is not None
    return ctypes.cast(getattr(_shim, function), ctypes.c_void_p).value or 0


def _index(device: torch.device | int | str | None) -> int:
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def mem_pool(device: torch.device | int | str | None = None) -> torch.cuda.MemPool:
    """Returns a ``torch.cuda.MemPool`` whose segments are blocks of dmr.

    Pass it to ``torch.cuda.use_mem_pool``, which covers the calling thread only, or use
    :func:`using` or :func:`use`, which cover all threads. Expandable segments do not go with it.
    """
    _connect(_index(device))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        str(TORCH_SHIM), "dmr_torch_allocate_segment", "dmr_torch_free"
    )
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator.allocator())


@contextlib.contextmanager
def using(device: torch.device | int | str | None = None) -> Iterator[torch.cuda.MemPool]:
    """Within the block, all threads of the process have their segments from dmr, backward passes
    too. Tensors may outlive it."""
    index = _index(device)
    pool = mem_pool(index)
    torch._C._cuda_beginAllocateToPool(index, pool.id)
    try:
        yield pool
    finally:
        torch._C._cuda_endAllocateToPool(index, pool.id)
        torch._C._cuda_releasePool(index, pool.id)


def use(device: torch.device | int | str | None = None) -> torch.cuda.MemPool:
    """From here on PyTorch's caching allocator has the segments of a device from dmr, in all
    threads. Memory that PyTorch has cached before stays its own until ``torch.cuda.empty_cache()``.
    Returns the pool, which ``torch.cuda.memory_snapshot`` and ``MemPool.snapshot`` know."""
    index = _index(device)
    known = _in_use.get(index)
    if known is None:
        pool = mem_pool(index)
        torch._C._cuda_beginAllocateToPool(index, pool.id)
        known = _in_use[index] = pool
    return known  # type: ignore[return-value]


def on_out_of_memory(make_room: Callable[[int, int], bool] | None) -> None:
    """Sets what makes room where an allocation is refused, after :func:`use_as_allocator`: it gets the
    device and the bytes, drops or moves tensors, and returns whether the allocation is to be tried
    again, eight times at most. What it allocates itself is refused as before. ``None`` for nothing.

    With :func:`use`, PyTorch frees what it has cached instead: it allocates a segment under a lock,
    where no Python may run."""
    assert _shim is not None, "call use_as_allocator first"
    _shim.dmr_torch_set_make_room.argtypes = [ctypes.c_void_p]
    _shim.dmr_torch_set_make_room.restype = None
    if make_room is None:
        _shim.dmr_torch_set_make_room(None)
        return
    given = make_room

    def called(device: int, bytes: int) -> int:
        return int(bool(given(device, bytes)))

    function = _MakeRoom(called)
    _kept.append(function)
    _shim.dmr_torch_set_make_room(ctypes.cast(function, ctypes.c_void_p))


def use_as_allocator(devices: list[int] | None = None) -> None:
    """Replaces PyTorch's caching allocator by dmr, on these devices, or all. Call it before the
    first tensor on a GPU; PyTorch refuses it afterwards."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(TORCH_SHIM), "dmr_torch_allocate", "dmr_torch_free")
    # First: PyTorch refuses to exchange an allocator that is in use.
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.append(allocator)
    for device in range(torch.cuda.device_count()) if devices is None else devices:
        _connect(device)
    inner = allocator.allocator()
    inner.set_record_stream_fn(_address_of("dmr_torch_record_stream"))
    inner.set_reset_fn(_address_of("dmr_torch_empty_cache"))
