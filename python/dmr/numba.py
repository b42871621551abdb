"""Numba on memory of dmr: an external memory manager.

Numba's interface is synchronous: kernels on any stream may use memory at once, and until its last
reference goes away. So an allocation waits for what its memory's last owner still has under way, and
a free waits for the device, as ``cuMemFree`` does.
"""

from __future__ import annotations

import ctypes

from numba import cuda
from numba.cuda import HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

from ._library import Error
from ._runtime import Runtime, runtime

__all__ = ["MemoryManager", "use"]

_LEGACY = 0
_cuda = ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    code = getattr(_cuda, name)(*arguments)
    if code != 0:
        raise Error("driver", f"{name} returned {code}")


class _Address(int):
    """An address, for each generation of Numba: one takes its integer, the other its value."""

    @property
    def value(self) -> int:
        return int(self)


class MemoryManager(HostOnlyCUDAMemoryManager):
    """Device memory of dmr; host memory is Numba's own."""

    def _runtime(self) -> Runtime:
        return runtime(self.context.device.id)

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        super().initialize()
        self._runtime()

    def memalloc(self, size: int) -> MemoryPointer:
        """Allocates device memory."""
        memory = self._runtime()
        address = memory.allocate(size, _LEGACY)
        # The work that it comes after is on the legacy stream.
        _call("cuStreamSynchronize", ctypes.c_void_p(_LEGACY))

        def free() -> None:
            _call("cuCtxSynchronize")
            memory.free(address)

        return MemoryPointer(self.context, _Address(address), size, finalizer=free)

    def get_memory_info(self) -> MemoryInfo:
        """Returns what is left of the limit, and the limit; without one, the memory of the device."""
        usage = self._runtime().usage()
        if usage.limit is not None and usage.remaining is not None:
            return MemoryInfo(free=usage.remaining, total=usage.limit)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return MemoryInfo(free=free.value, total=total.value)

    def get_ipc_handle(self, memory: MemoryPointer) -> object:
        """Refused: memory of dmr cannot be shared with another process."""
        raise NotImplementedError("memory of dmr cannot be shared with another process")

    def reset(self) -> None:
        super().reset()


def use() -> None:
    """From here on Numba's device memory is dmr's. Call it before Numba's first use of the GPU."""
    cuda.set_memory_manager(MemoryManager)
