"""Numba on memory of dmr: needs a GPU and Numba."""

from __future__ import annotations

import unittest

import dmr
import dmr.numba

dmr.numba.use()

import numpy  # noqa: E402
from numba import cuda  # noqa: E402


@cuda.jit
def double(values):  # type: ignore[no-untyped-def]
    """Doubles each number."""
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= 2


class NumbaTest(unittest.TestCase):
    """Numba's device arrays are blocks of dmr."""

    def test_arrays_are_changed_by_kernels(self) -> None:
        for turn in range(10):
            values = numpy.arange(100_000, dtype=numpy.float32) + turn
            on_device = cuda.to_device(values)
            double[100, 1024](on_device)
            self.assertTrue((on_device.copy_to_host() == 2 * values).all())
        self.assertGreaterEqual(dmr.statistics().allocations.total, 10)

    def test_memory_info_is_that_of_the_runtime(self) -> None:
        info = cuda.current_context().get_memory_info()
        self.assertGreater(info.total, 0)


if __name__ == "__main__":
    unittest.main()
