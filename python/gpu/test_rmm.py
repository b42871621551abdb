"""RMM's package on memory of dmr: needs that package, and a GPU or the simulated driver with the RMM
that ``cargo xtask rmm`` builds for it. What else the package calls of CUDA's runtime library, such as
the current device, copies and pools, does not run there: ``test_rmm_device.py`` has the tests of that."""

from __future__ import annotations

import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import driver
import rmm
from rmm.pylibrmm.stream import Stream

import dmr
import dmr.rmm

MIB = 1 << 20


class OfDriver:
    """A stream of the driver API, as the stream protocol describes it."""

    def __init__(self) -> None:
        self.handle = driver.stream()

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)

    def destroy(self) -> None:
        dmr.rmm.retire(self)
        driver.destroy(self.handle)


class RmmTest(unittest.TestCase):
    """Buffers of RMM are blocks of dmr."""

    @classmethod
    def setUpClass(cls) -> None:
        driver.bind()
        dmr.limit(64 * MIB)
        dmr.rmm.use()

    def setUp(self) -> None:
        driver.bind()

    def test_a_buffer_is_a_block(self) -> None:
        before = dmr.usage()
        buffer = rmm.DeviceBuffer(size=1000, mr=rmm.mr.get_per_device_resource(0))
        self.assertEqual(dmr.usage().live, before.live + 1000)
        self.assertEqual(buffer.ptr % 256, 0)
        del buffer
        self.assertEqual(dmr.usage().live, before.live)

    def test_memory_is_freed_behind_the_stream_of_the_deallocation(self) -> None:
        memory = dmr.rmm.resource()
        first, second = OfDriver(), OfDriver()
        for turn in range(20):
            address = memory.allocate(5000, Stream(first))
            driver.fill(address, turn, 5000, first.handle)
            driver.read(address, 1, first.handle)
            # The last use is on the second stream.
            driver.fill(address, 100 + turn, 5000, second.handle)
            memory.deallocate(address, 5000, Stream(second))
            again = memory.allocate(5000, Stream(first))
            driver.fill(again, turn, 5000, first.handle)
            self.assertEqual(driver.read(again, 5000, first.handle), bytes([turn]) * 5000)
            memory.deallocate(again, 5000, Stream(first))
        first.destroy()
        second.destroy()
        self.assertEqual(dmr.usage().live, 0)

    def test_a_shortage_is_a_memory_error(self) -> None:
        memory = dmr.rmm.resource()
        with self.assertRaises(MemoryError):
            rmm.DeviceBuffer(size=65 * MIB, mr=memory)
        rmm.DeviceBuffer(size=MIB, mr=memory)

    def test_more_streams_come_and_go_than_a_runtime_has_room_for(self) -> None:
        memory = dmr.rmm.resource()
        for _ in range(300):
            stream = OfDriver()
            memory.deallocate(memory.allocate(100, Stream(stream)), 100, Stream(stream))
            stream.destroy()

    def test_a_deallocation_during_a_capture_is_not_lost(self) -> None:
        memory = dmr.rmm.resource()
        stream = OfDriver()
        before = dmr.usage().live
        address = memory.allocate(1000, Stream(stream))
        driver.begin_capture(stream.handle)
        memory.deallocate(address, 1000, Stream(stream))
        self.assertEqual(dmr.usage().live, before + 1000)
        driver.end_capture(stream.handle)
        memory.deallocate(memory.allocate(10, Stream(stream)), 10, Stream(stream))
        self.assertEqual(dmr.usage().live, before)
        stream.destroy()

    def test_threads_share_a_resource(self) -> None:
        memory = dmr.rmm.resource()
        wrong: list[int] = []

        def work(turn: int) -> None:
            driver.bind()
            stream = OfDriver()
            for _ in range(30):
                address = memory.allocate(3000, Stream(stream))
                driver.fill(address, turn, 3000, stream.handle)
                if driver.read(address, 3000, stream.handle) != bytes([turn]) * 3000:
                    wrong.append(turn)
                memory.deallocate(address, 3000, Stream(stream))
            stream.destroy()

        threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(dmr.usage().live, 0)


if __name__ == "__main__":
    unittest.main()
