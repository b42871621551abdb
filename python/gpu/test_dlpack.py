"""Tensors from PyTorch, here, and back to PyTorch, on side streams with a slow producer: needs a GPU and PyTorch."""

from __future__ import annotations

import gc
import sys
import time
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import driver  # noqa: E402

import dmr  # noqa: E402

MIB = 1 << 20
#: Clock cycles by which a producer is slow: some 50 ms.
SLOW = 100_000_000


def slow_tensor(value: int, side: torch.cuda.Stream) -> torch.Tensor:
    """Returns bytes that are 0 until the side stream has slept, and ``value`` then."""
    made = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        made.fill_(value)
    return made


class DLPackTest(unittest.TestCase):
    """PyTorch and dmr exchange tensors without a copy."""

    def setUp(self) -> None:
        torch.cuda.init()
        self.side = torch.cuda.Stream()
        self.mine = torch.cuda.Stream()
        self.runtime = dmr.Runtime(limit=64 * MIB)

    def tearDown(self) -> None:
        self.runtime.close()

    def test_a_tensor_from_a_slow_producer_has_its_bytes_here_and_back_there(self) -> None:
        for turn in range(1, 6):
            theirs = slow_tensor(turn, self.side)
            with torch.cuda.stream(self.side):
                mine = dmr.from_dlpack(theirs, stream=self.mine.cuda_stream, runtime=self.runtime)
            self.assertEqual(mine.address, theirs.data_ptr())
            self.assertEqual(driver.read(mine.address, MIB, self.mine.cuda_stream), bytes([turn]) * MIB)
            # Back, after a slow write on our stream; PyTorch asks for its current stream.
            with torch.cuda.stream(self.mine):
                torch.cuda._sleep(SLOW)
            driver.fill(mine.address, turn + 100, MIB, self.mine.cuda_stream)
            mine.record_use(self.mine.cuda_stream, "write")
            with torch.cuda.stream(self.side):
                back = torch.from_dlpack(mine)
                self.assertTrue(bool((back == turn + 100).all()), turn)
            del back, theirs
            mine.close()
            gc.collect()

    def test_memory_of_dmr_is_a_tensor_of_pytorch(self) -> None:
        mine = dmr.empty((4, MIB // 16), (2, 32, 1), stream=self.mine.cuda_stream, runtime=self.runtime)
        with torch.cuda.stream(self.mine):
            torch.cuda._sleep(SLOW)
        driver.fill(mine.address, 0, mine.nbytes, self.mine.cuda_stream)
        mine.record_use(self.mine.cuda_stream, "write")
        with torch.cuda.stream(self.side):
            tensor = torch.from_dlpack(mine)
            self.assertEqual((tuple(tensor.shape), tensor.dtype), ((4, MIB // 16), torch.float32))
            tensor += 1
            total = float(tensor.sum())
        self.assertEqual(total, MIB / 4)
        mine.close()
        self.assertEqual(self.runtime.usage().live, MIB)
        del tensor
        gc.collect()
        end = time.monotonic() + 20
        while self.runtime.usage().live and time.monotonic() < end:
            time.sleep(0.001)
        self.assertEqual(self.runtime.usage().live, 0)

    def test_without_the_wait_the_bytes_are_wrong(self) -> None:
        wrong = 0
        for turn in range(1, 6):
            theirs = slow_tensor(turn, self.side)
            mine = dmr.from_dlpack(theirs, stream=-1, runtime=self.runtime)
            wrong += driver.read(mine.address, MIB, self.mine.cuda_stream) != bytes([turn]) * MIB
            torch.cuda.synchronize()
            mine.close()
        print(f"without the wait: wrong bytes {wrong} of 5 times")
        self.assertGreater(wrong, 0)


if __name__ == "__main__":
    unittest.main()
