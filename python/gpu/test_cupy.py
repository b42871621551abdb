"""CuPy on memory of dmr: needs a GPU and CuPy."""

from __future__ import annotations

import unittest

import cupy

import dmr
import dmr.cupy

MIB = 1 << 20


class CupyTest(unittest.TestCase):
    """CuPy's arrays are blocks of dmr."""

    @classmethod
    def setUpClass(cls) -> None:
        dmr.limit(1024 * MIB)
        dmr.cupy.use()

    def test_arrays_are_sorted_and_reduced(self) -> None:
        for turn in range(5):
            values = cupy.random.default_rng(turn).integers(0, 1 << 30, 4 * MIB)
            ordered = cupy.sort(values)
            self.assertTrue(bool((ordered[1:] >= ordered[:-1]).all()))
            self.assertEqual(int(values.sum()), int(ordered.sum()))
        del values, ordered
        self.assertGreater(dmr.statistics().allocations.total, 5)
        self.assertGreater(dmr.usage().reserved, 0)

    def test_an_array_that_is_used_on_another_stream_is_not_overwritten(self) -> None:
        spin = cupy.RawKernel('extern "C" __global__ void spin() { long long t = clock64(); while (clock64() - t < 20000000); }', "spin")
        side = cupy.cuda.Stream(non_blocking=True)
        home = cupy.cuda.Stream(non_blocking=True)
        for turn in range(10):
            with home:
                values = cupy.full(4 * MIB, turn, dtype=cupy.int32)
            side.wait_event(home.record())
            with side:
                spin((1,), (1,), ())
                copy = values.copy()
                dmr.cupy.record_use(values)
            del values
            with home:
                for _ in range(4):
                    cupy.full(4 * MIB, -1, dtype=cupy.int32)
            side.synchronize()
            self.assertTrue(bool((copy == turn).all()), turn)

    def test_an_allocation_beyond_the_limit_is_cupys_error(self) -> None:
        with self.assertRaises(cupy.cuda.memory.OutOfMemoryError):
            cupy.zeros(2048 * MIB, dtype=cupy.uint8)
        self.assertEqual(int(cupy.arange(10).sum()), 45)


if __name__ == "__main__":
    unittest.main()
