"""The functions that PyTorch calls, without PyTorch: order, limits and captures."""

from __future__ import annotations

import ctypes
import os
import unittest

import driver

import dmr
from dmr._library import TORCH_SHIM

KIB = 1 << 10
MIB = 1 << 20

_shim = ctypes.CDLL(str(TORCH_SHIM))
for _name in ("dmr_torch_allocate", "dmr_torch_allocate_segment"):
    getattr(_shim, _name).argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    getattr(_shim, _name).restype = ctypes.c_void_p
_shim.dmr_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_shim.dmr_torch_free.restype = None
_shim.dmr_torch_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_shim.dmr_torch_record_stream.restype = None
_shim.dmr_torch_set_runtime.argtypes = [ctypes.c_int, ctypes.c_void_p]


def side_stream(records: bool) -> None:
    """Frees memory that a side stream uses, and overwrites it at once."""
    driver.bind()
    with dmr.Runtime() as runtime:
        _shim.dmr_torch_set_runtime(0, runtime.handle)
        home, side = driver.stream(), driver.stream()
        memory = _shim.dmr_torch_allocate(MIB, 0, home)
        runtime.wait_for_uses(memory, side)
        if records:
            # Before the work, as programs often do: what counts is the work at the time of the free.
            _shim.dmr_torch_record_stream(memory, side)
        driver.fill(memory, 1, MIB, side)
        _shim.dmr_torch_free(memory, MIB, 0, home)
        again = _shim.dmr_torch_allocate(MIB, 0, home)
        driver.fill(again, 2, MIB, home)
        _shim.dmr_torch_free(again, MIB, 0, home)
        for stream in (home, side):
            runtime.retire_stream(stream)
            driver.destroy(stream)


class ShimTest(unittest.TestCase):
    """The functions of ``libdmr_torch.so``."""

    def setUp(self) -> None:
        driver.bind()

    def test_a_segment_beyond_the_limit_is_null(self) -> None:
        with dmr.Runtime(limit=4 * MIB) as runtime:
            _shim.dmr_torch_set_runtime(0, runtime.handle)
            memory = _shim.dmr_torch_allocate_segment(2 * MIB, 0, None)
            self.assertIsNone(_shim.dmr_torch_allocate_segment(64 * MIB, 0, None))
            _shim.dmr_torch_free(memory, 2 * MIB, 0, None)
            self.assertEqual(runtime.usage().live, 0)

    def test_a_free_while_the_stream_captures_is_made_later(self) -> None:
        with dmr.Runtime() as runtime:
            _shim.dmr_torch_set_runtime(0, runtime.handle)
            stream = driver.stream()
            memory = _shim.dmr_torch_allocate(KIB, 0, stream)
            driver.begin_capture(stream)
            _shim.dmr_torch_free(memory, KIB, 0, stream)
            self.assertEqual(runtime.usage().live, KIB)
            driver.end_capture(stream)
            _shim.dmr_torch_free(_shim.dmr_torch_allocate(KIB, 0, stream), KIB, 0, stream)
            self.assertEqual(runtime.usage().live, 0)

    def test_a_forked_child_frees_nothing(self) -> None:
        with dmr.Runtime() as runtime:
            _shim.dmr_torch_set_runtime(0, runtime.handle)
            stream = driver.stream()
            memory = _shim.dmr_torch_allocate(KIB, 0, stream)
            _shim.dmr_torch_record_stream(memory, stream)
            child = os.fork()
            if child == 0:
                _shim.dmr_torch_record_stream(memory, None)
                _shim.dmr_torch_free(memory, KIB, 0, stream)
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(runtime.usage().live, KIB)
            _shim.dmr_torch_free(memory, KIB, 0, stream)
            self.assertEqual(runtime.usage().live, 0)

    def test_a_callback_makes_room(self) -> None:
        with dmr.Runtime(limit=4 * MIB, backend="direct-tracked") as runtime:
            _shim.dmr_torch_set_runtime(0, runtime.handle)
            kept = [_shim.dmr_torch_allocate(MIB, 0, None) for _ in range(4)]
            asked = []

            def make_room(device: int, bytes: int) -> int:
                asked.append((device, bytes))
                _shim.dmr_torch_free(kept.pop(), MIB, 0, None)
                return 1

            function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_size_t)(make_room)
            _shim.dmr_torch_set_make_room(function)
            try:
                large = _shim.dmr_torch_allocate(2 * MIB, 0, None)
            finally:
                _shim.dmr_torch_set_make_room(None)
            self.assertEqual(asked, [(0, 2 * MIB)] * 2)
            for memory in [large, *kept]:
                _shim.dmr_torch_free(memory, MIB, 0, None)
            self.assertEqual(runtime.usage().live, 0)

    def test_the_work_of_a_recorded_stream_is_waited_for(self) -> None:
        side_stream(records=True)


if __name__ == "__main__":
    unittest.main()
