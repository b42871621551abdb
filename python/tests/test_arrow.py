"""Columns of Arrow on the simulated driver, or a GPU: from and to other libraries, by capsules."""

from __future__ import annotations

import ctypes
import gc
import operator
import threading
import time
import unittest
from ctypes import addressof, c_char_p, c_void_p

import driver

import dmr
import dmr.arrow
from dmr.arrow import _Array, _DeviceArray, _Schema

ROWS = 1000
RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


class Producer:
    """Another library: a column of ``uint8`` that a stream of its own writes."""

    def __init__(self, byte: int, *, has_event: bool = True, format: bytes = b"C") -> None:
        self.stream = driver.stream()
        self.memory = driver.allocate(ROWS)
        driver.fill(self.memory, byte, ROWS, self.stream)
        self.event = c_void_p(driver.record(self.stream))
        self.has_event = has_event
        self.released = threading.Event()
        self.releases = 0
        self._buffers = (c_void_p * 2)(None, self.memory)
        self._format = c_char_p(format)
        self._name = c_char_p(b"bytes")
        self._release_array = RELEASE(self._release)
        self._release_schema = RELEASE(lambda at: setattr(_Schema.from_address(at), "release", None))

    def _release(self, at: int) -> None:
        driver.bind()
        driver.free(self.memory)
        driver.destroy_event(self.event.value or 0)
        _Array.from_address(at).release = None
        self.releases += 1
        self.released.set()

    def __arrow_c_device_array__(self, requested_schema: object = None, **_: object) -> tuple[object, object]:
        schema = _Schema()
        schema.format = self._format.value
        schema.name = self._name.value
        schema.release = ctypes.cast(self._release_schema, c_void_p).value
        array = _DeviceArray()
        array.array.length = ROWS
        array.array.n_buffers = 2
        array.array.buffers = addressof(self._buffers)
        array.array.release = ctypes.cast(self._release_array, c_void_p).value
        array.device_type = 2
        array.sync_event = addressof(self.event) if self.has_event else None
        # The capsules have copies, which point to the texts that these keep.
        self._structs = (schema, array)
        capsule = dmr.arrow._capsule
        return capsule(schema, dmr.arrow._SCHEMA), capsule(array, dmr.arrow._DEVICE_ARRAY)

    def wait_for_release(self, test: unittest.TestCase) -> None:
        """Waits until the array was released, once."""
        test.assertTrue(self.released.wait(20))
        time.sleep(0.01)
        test.assertEqual(self.releases, 1)


class ImportTest(unittest.TestCase):
    """Columns of another library."""

    def setUp(self) -> None:
        driver.bind()

    def test_a_column_of_another_library_is_read_on_a_side_stream(self) -> None:
        home, side = driver.stream(), driver.stream()
        with dmr.Runtime() as runtime:
            producer = Producer(9)
            column = dmr.from_arrow(producer, stream=home, runtime=runtime)
            self.assertEqual((column.format, column.name, len(column)), ("C", "bytes", ROWS))
            self.assertEqual((column.null_count, column.offset, column.children), (0, 0, []))
            self.assertIsNone(column.dictionary)
            absent, values = column.buffers
            self.assertEqual((absent, values), ((0, 0), (producer.memory, ROWS)))
            column.wait(side)
            self.assertEqual(driver.read(values[0], ROWS, side), bytes([9]) * ROWS)
            column.record_read(side)
            column.close()
            producer.wait_for_release(self)

    def test_what_is_refused_is_released_by_its_capsules(self) -> None:
        with dmr.Runtime() as runtime:
            producer = Producer(9, format=b"what")
            with self.assertRaises(dmr.InvalidArgument) as raised:
                dmr.from_arrow(producer, runtime=runtime)
            self.assertIn('ArrowSchema.format is "what"', str(raised.exception))
            # The frames of the exception have the capsules.
            del raised
            gc.collect()
            producer.wait_for_release(self)
            with self.assertRaisesRegex(TypeError, "__arrow_c_device_array__"):
                dmr.from_arrow([1, 2, 3], runtime=runtime)


class ExportTest(unittest.TestCase):
    """Columns of dmr."""

    def setUp(self) -> None:
        driver.bind()

    def make(self, runtime: dmr.Runtime, stream: int, byte: int, name: str = "n") -> dmr.Column:
        address = runtime.allocate(4 * ROWS, stream)
        driver.fill(address, byte, 4 * ROWS, stream)
        return dmr.arrow.column("i", ROWS, [0, address], name=name, null_count=0, stream=stream, runtime=runtime)

    def test_another_library_reads_a_column_on_a_side_stream(self) -> None:
        home, side = driver.stream(), driver.stream()
        with dmr.Runtime() as runtime:
            children = [self.make(runtime, home, byte, name) for byte, name in ((3, "a"), (4, "b"))]
            table = dmr.arrow.column("+s", ROWS, [0], children=children, stream=home, runtime=runtime)
            del children
            self.assertEqual([child.name for child in table.children], ["a", "b"])
            for _ in range(2):
                schema, array = table.__arrow_c_device_array__()
                there = _DeviceArray.from_address(dmr.arrow._get_pointer(array, b"arrow_device_array"))
                type_ = _Schema.from_address(dmr.arrow._get_pointer(schema, b"arrow_schema"))
                self.assertEqual((type_.format, type_.n_children, there.array.n_children), (b"+s", 2, 2))
                driver.wait_event(side, c_void_p.from_address(there.sync_event).value or 0)
                for index, byte in enumerate((3, 4)):
                    child = (c_void_p * 2).from_address(there.array.children)[index]
                    buffers = (c_void_p * 2).from_address(_Array.from_address(child).buffers)
                    self.assertEqual(driver.read(buffers[1] or 0, 4 * ROWS, side), bytes([byte]) * 4 * ROWS)
            with self.assertRaises(NotImplementedError):
                table.__arrow_c_device_array__(later=1)
            table.close()
            self.assertEqual(runtime.usage().live, 8 * ROWS)
            # The last capsules release the memory.
            del schema, array, there, type_, buffers
            gc.collect()
            self.assertEqual(runtime.usage().live, 0)

    def test_a_column_comes_back_with_its_own_memory(self) -> None:
        home = driver.stream()
        with dmr.Runtime() as runtime:
            column = self.make(runtime, home, 5)
            back = dmr.from_arrow(column, stream=home, runtime=runtime)
            self.assertEqual(back.buffers, column.buffers)
            column.close()
            self.assertEqual(driver.read(back.buffers[1][0], 4, home), bytes([5]) * 4)
            back.close()
            self.assertEqual(runtime.usage().live, 0)

    def test_a_consumer_that_refuses_a_capsule_has_its_own_exception(self) -> None:
        home = driver.stream()
        with dmr.Runtime() as runtime:
            column = self.make(runtime, home, 5)
            for index in range(2):
                # The capsules are destroyed while the exception is raised.
                with self.assertRaisesRegex(TypeError, "unsupported operand"):
                    operator.add(column.__arrow_c_device_array__()[index], 1)
            column.close()
            self.assertEqual(runtime.usage().live, 0)

    def test_parts_that_do_not_belong_together_leave_the_blocks(self) -> None:
        with dmr.Runtime() as runtime:
            address = runtime.allocate(4 * ROWS)
            for arguments in (("i", ROWS + 1, [0, address]), ("q", 1, [0, address]), ("i", 1, [address, address])):
                with self.assertRaises(dmr.Error):
                    dmr.arrow.column(*arguments, runtime=runtime)
            runtime.free(address)


def read_unordered() -> None:
    """Reads a column whose library has not said when it is written."""
    driver.bind()
    side = driver.stream()
    runtime = dmr.Runtime()
    producer = Producer(9, has_event=False)
    column = dmr.from_arrow(producer, stream=side, runtime=runtime)
    driver.read(column.buffers[1][0], ROWS, side)
    column.close()
    # Its callback is called until then.
    producer.released.wait(20)


if __name__ == "__main__":
    unittest.main()
