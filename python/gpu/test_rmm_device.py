"""RMM's package on memory of dmr, in the calls that need CUDA's runtime library: needs a GPU."""

from __future__ import annotations

import unittest

import rmm

import dmr
import dmr.rmm

MIB = 1 << 20


class RmmDeviceTest(unittest.TestCase):
    """Buffers, copies and pools of RMM on blocks of dmr."""

    @classmethod
    def setUpClass(cls) -> None:
        dmr.limit(64 * MIB)
        dmr.rmm.use()

    def test_a_buffer_of_the_current_resource_is_a_block(self) -> None:
        before = dmr.usage().live
        buffer = rmm.DeviceBuffer.to_device(b"bytes" * 1000)
        self.assertEqual(dmr.usage().live, before + 5000)
        self.assertEqual(buffer.copy_to_host().tobytes(), b"bytes" * 1000)
        copied = buffer.copy()
        del buffer
        self.assertEqual(copied.copy_to_host().tobytes(), b"bytes" * 1000)
        del copied
        self.assertEqual(dmr.usage().live, before)

    def test_a_pool_of_rmm_on_top(self) -> None:
        before = dmr.usage().live
        pool = rmm.mr.PoolMemoryResource(dmr.rmm.resource(), initial_pool_size=MIB)
        self.assertEqual(dmr.usage().live, before + MIB)
        buffer = rmm.DeviceBuffer(size=1000, mr=pool)
        self.assertEqual(dmr.usage().live, before + MIB)
        del buffer, pool
        self.assertEqual(dmr.usage().live, before)

    def test_a_shortage_is_a_memory_error(self) -> None:
        with self.assertRaises(MemoryError):
            rmm.DeviceBuffer(size=65 * MIB)


if __name__ == "__main__":
    unittest.main()
