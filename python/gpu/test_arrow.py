"""Columns of Arrow between PyTorch, dmr and, where it is installed, cudf: needs a GPU and PyTorch."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import threading
import unittest
from ctypes import addressof, c_char_p, c_void_p

import torch

import dmr
import dmr.arrow
from dmr.arrow import _Array, _DeviceArray, _Schema

ROWS = 1 << 20
ROUNDS = 20
# Clock cycles: some ten milliseconds.
SLOW = 20_000_000
RELEASE = ctypes.CFUNCTYPE(None, c_void_p)
CUDA = ctypes.CDLL("libcuda.so.1")


class Words:
    """Device memory as PyTorch takes it."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (ROWS,),
            "typestr": "<i4",
            "data": (address, False),
            "version": 3,
            "stream": None,
        }


def words(address: int) -> torch.Tensor:
    """Returns a tensor of the memory, without a copy."""
    return torch.as_tensor(Words(address), device="cuda")


class SlowTensor:
    """A library that lends a tensor of PyTorch, which a stream of its own writes late, as a column."""

    def __init__(self, value: int, *, has_event: bool) -> None:
        self.tensor = torch.zeros(ROWS, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()
        self.stream = torch.cuda.Stream()
        self.event = torch.cuda.Event()
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(SLOW)
            self.tensor.fill_(value)
            self.event.record()
        self.released = threading.Event()
        self._handle = c_void_p(self.event.cuda_event)
        self._has_event = has_event
        self._buffers = (c_void_p * 2)(None, self.tensor.data_ptr())
        self._texts = (c_char_p(b"i"), c_char_p(b"n"))
        self._release_array = RELEASE(self._release)
        self._release_schema = RELEASE(lambda at: setattr(_Schema.from_address(at), "release", None))

    def _release(self, at: int) -> None:
        _Array.from_address(at).release = None
        self.released.set()

    def __arrow_c_device_array__(self, requested_schema: object = None, **_: object) -> tuple[object, object]:
        schema = _Schema()
        schema.format, schema.name = (text.value for text in self._texts)
        schema.release = ctypes.cast(self._release_schema, c_void_p).value
        array = _DeviceArray()
        array.array.length = ROWS
        array.array.n_buffers = 2
        array.array.buffers = addressof(self._buffers)
        array.array.release = ctypes.cast(self._release_array, c_void_p).value
        array.device_id = torch.cuda.current_device()
        array.device_type = 2
        array.sync_event = addressof(self._handle) if self._has_event else None
        # The capsules have copies, which point to the texts that these keep.
        self._structs = (schema, array)
        capsule = dmr.arrow._capsule
        return capsule(schema, dmr.arrow._SCHEMA), capsule(array, dmr.arrow._DEVICE_ARRAY)


class ArrowTest(unittest.TestCase):
    """Both ways, on side streams, with a slow producer."""

    def import_from_torch(self, has_event: bool) -> int:
        wrong = 0
        home, reader = torch.cuda.Stream(), torch.cuda.Stream()
        with dmr.Runtime() as runtime:
            for value in range(1, ROUNDS + 1):
                producer = SlowTensor(value, has_event=has_event)
                column = dmr.from_arrow(producer, stream=home.cuda_stream, runtime=runtime)
                column.wait(reader.cuda_stream)
                with torch.cuda.stream(reader):
                    copy = words(column.buffers[1][0]).clone()
                column.record_read(reader.cuda_stream)
                column.close()
                reader.synchronize()
                self.assertTrue(producer.released.wait(10), "the array is released once it was read")
                wrong += not bool((copy == value).all())
                producer.stream.synchronize()
        return wrong

    def test_a_tensor_of_a_slow_stream_is_read_behind_its_event(self) -> None:
        self.assertEqual(self.import_from_torch(has_event=True), 0)

    def test_without_the_event_the_bytes_are_wrong(self) -> None:
        self.assertGreater(self.import_from_torch(has_event=False), 0)

    def export_to_torch(self, waits: bool) -> int:
        wrong = 0
        writer, side, consumer = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
        with dmr.Runtime() as runtime:
            for value in range(1, ROUNDS + 1):
                address = runtime.allocate(4 * ROWS, writer.cuda_stream)
                with torch.cuda.stream(writer):
                    memory = words(address)
                    memory.zero_()
                    writer.synchronize()
                    torch.cuda._sleep(SLOW)
                    memory.fill_(value)
                del memory
                column = dmr.arrow.column(
                    "i", ROWS, [0, address], name="n", null_count=0, stream=side.cuda_stream, runtime=runtime
                )
                schema, array = column.__arrow_c_device_array__()
                column.close()
                there = _DeviceArray.from_address(dmr.arrow._get_pointer(array, dmr.arrow._DEVICE_ARRAY))
                if waits:
                    event = c_void_p.from_address(there.sync_event)
                    self.assertEqual(CUDA.cuStreamWaitEvent(c_void_p(consumer.cuda_stream), event, 0), 0)
                buffers = (c_void_p * 2).from_address(there.array.buffers)
                with torch.cuda.stream(consumer):
                    copy = words(buffers[1] or 0).clone()
                consumer.synchronize()
                wrong += not bool((copy == value).all())
                self.assertEqual(runtime.usage().live, 4 * ROWS)
                del there, buffers, schema, array
                gc.collect()
                self.assertEqual(runtime.usage().live, 0, "the last capsule has released it")
        return wrong

    def test_a_consumer_that_waits_for_the_event_reads_what_was_written(self) -> None:
        self.assertEqual(self.export_to_torch(waits=True), 0)

    def test_a_consumer_that_does_not_wait_reads_wrong_bytes(self) -> None:
        self.assertGreater(self.export_to_torch(waits=False), 0)


if importlib.util.find_spec("cudf"):

    class CudfTest(unittest.TestCase):
        """Tables of cudf, with text and nulls."""

        def test_a_table_comes_from_cudf_and_goes_back(self) -> None:
            import cudf
            import pylibcudf

            table = cudf.DataFrame({"n": [1, None, 3], "s": ["a", None, "ccc"]})
            with dmr.Runtime() as runtime:
                there = table.to_pylibcudf()[0]
                column = dmr.from_arrow(there, runtime=runtime)
                self.assertEqual(len(column), 3)
                back = pylibcudf.Table.from_arrow(column)
                self.assertEqual(back.num_columns(), 2)
                del there
                found = cudf.DataFrame.from_pylibcudf(back, {"columns": ["n", "s"], "index": []})
                self.assertTrue(found.equals(table))
                del back, found
                gc.collect()
                column.close()


if __name__ == "__main__":
    unittest.main()
