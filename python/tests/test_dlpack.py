"""The package on the simulated driver, or a GPU: tensors in and out by DLPack."""

from __future__ import annotations

import ctypes
import gc
import operator
import threading
import time
import unittest
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import driver

import dmr
from dmr import tensor as dlpack

UINT8 = (1, 8, 1)


class DLTensor(Structure):
    """``DLTensor`` of DLPack's header."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Managed(Structure):
    """``DLManagedTensor``."""


class Versioned(Structure):
    """``DLManagedTensorVersioned``."""


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)
Managed._fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", _DELETER)]
Versioned._fields_ = [
    ("major", c_uint32),
    ("minor", c_uint32),
    ("context", c_void_p),
    ("deleter", _DELETER),
    ("flags", c_uint64),
    ("tensor", DLTensor),
]


class Producer:
    """An array of another library: memory of another runtime, written on a stream of its own."""

    def __init__(self, bytes: int, versioned: bool, flags: int = 0) -> None:
        self.memory = dmr.Runtime()
        self.stream = driver.stream()
        self.address = self.memory.allocate(bytes, self.stream)
        self.deletions = 0
        self.asked: list[object] = []
        self._versioned = versioned
        self._shape = (c_int64 * 1)(bytes)
        self._strides = (c_int64 * 1)(1)
        self._deleter = _DELETER(self._delete)
        tensor = DLTensor(self.address, 2, 0, 1, *UINT8, self._shape, self._strides, 0)
        if versioned:
            self.managed = Versioned(1, 3, None, self._deleter, flags, tensor)
        else:
            self.managed = Managed(tensor, None, self._deleter)

    def _delete(self, _: int) -> None:
        self.deletions += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int, **rest: object) -> object:
        self.asked.append(stream)
        if not self._versioned and "max_version" in rest:
            raise TypeError("max_version")
        if stream > 0:
            driver.order(self.stream, 0 if stream == 1 else stream)
        # Of a producer whose capsules delete nothing.
        return dlpack._new(ctypes.addressof(self.managed), dlpack._NAMES[self._versioned][0], None)

    def wait(self, count: int) -> None:
        """Waits until the tensor was deleted so often."""
        end = time.monotonic() + 20
        while self.deletions < count and time.monotonic() < end:
            time.sleep(0.001)

    def close(self) -> None:
        self.memory.close()
        driver.destroy(self.stream)


class DLPackTest(unittest.TestCase):
    """Tensors of other libraries, and for them."""

    def setUp(self) -> None:
        driver.bind()

    def test_a_tensor_comes_in_is_used_and_goes_back_once(self) -> None:
        for versioned in (False, True):
            with self.subTest(versioned=versioned), dmr.Runtime() as runtime:
                producer = Producer(64, versioned)
                mine, side = driver.stream(), driver.stream()
                driver.fill(producer.address, 7, 64, producer.stream)
                tensor = dmr.from_dlpack(producer, stream=mine, runtime=runtime)
                self.assertEqual(producer.asked[-1], mine)
                self.assertEqual((tensor.shape, tensor.strides, tensor.dtype), ((64,), (1,), UINT8))
                self.assertEqual((tensor.address, tensor.nbytes, tensor.read_only), (producer.address, 64, False))
                tensor.wait_for_uses(side, "read")
                self.assertEqual(driver.read(tensor.address, 64, side), bytes([7]) * 64)
                tensor.record_use(side, "read")
                self.assertEqual(producer.deletions, 0)
                del tensor
                gc.collect()
                producer.wait(1)
                self.assertEqual(producer.deletions, 1)
                for stream in (mine, side):
                    runtime.retire_stream(stream)
                producer.close()

    def test_a_tensor_goes_out_and_comes_back(self) -> None:
        with dmr.Runtime() as runtime:
            mine, theirs = driver.stream(), driver.stream()
            for number, version in ((theirs, (1, 3)), (theirs, None), (None, (1, 0)), (2, (1, 3)), (-1, (1, 3))):
                with self.subTest(stream=number, version=version):
                    tensor = dmr.empty((4, 8), UINT8, stream=mine, runtime=runtime)
                    driver.fill(tensor.address, 9, 32, mine)
                    tensor.record_use(mine, "write")
                    capsule = tensor.__dlpack__(stream=number, max_version=version)
                    tensor.close()
                    # The consumer.
                    if number == -1:
                        driver.synchronize(mine)
                    back = dmr.from_dlpack(capsule, stream=number, runtime=runtime)
                    on = theirs if number == theirs else 0
                    back.wait_for_uses(on, "read")
                    self.assertEqual(back.shape, (4, 8))
                    self.assertEqual(driver.read(back.address, 32, on), bytes([9]) * 32)
                    back.record_use(on, "read")
                    back.close()
            for stream in (mine, theirs):
                runtime.retire_stream(stream)

    def test_a_capsule_that_no_consumer_takes_deletes_its_tensor(self) -> None:
        with dmr.Runtime() as runtime:
            tensor = dmr.empty((16,), UINT8, runtime=runtime)
            capsule = tensor.__dlpack__(max_version=(1, 3))
            tensor.close()
            self.assertEqual(runtime.usage().live, 16)
            del capsule
            gc.collect()
            self.assertEqual(runtime.usage().live, 0)

    def test_a_consumer_that_refuses_a_capsule_has_its_own_exception(self) -> None:
        with dmr.Runtime() as runtime:
            for version in ((1, 3), None):
                tensor = dmr.empty((16,), UINT8, runtime=runtime)
                # The capsule is destroyed while the exception is raised.
                with self.assertRaisesRegex(TypeError, "unsupported operand"):
                    operator.add(tensor.__dlpack__(max_version=version), 1)
                tensor.close()
                self.assertEqual(runtime.usage().live, 0)

    def test_a_capsule_that_waits_for_the_device_lets_host_functions_have_the_interpreter(self) -> None:
        stream = driver.stream()
        called = []
        with dmr.Runtime() as runtime:
            tensor = dmr.empty((16,), UINT8, stream=stream, runtime=runtime)
            # The consumer is unknown, so that the deletion waits.
            capsule = tensor.__dlpack__(stream=-1, max_version=(1, 3))
            tensor.close()
            may_go_on = threading.Event()
            function = driver.HOST_FUNCTION(lambda _: called.append(may_go_on.wait(60)))
            driver.launch_host_function(stream, function)
            timer = threading.Timer(0.2, may_go_on.set)
            timer.start()
            del capsule
            self.assertEqual(called, [True])
            timer.join()
            runtime.retire_stream(stream)

    def test_a_capsule_is_taken_once(self) -> None:
        with dmr.Runtime() as runtime:
            tensor = dmr.empty((16,), UINT8, runtime=runtime)
            capsule = tensor.__dlpack__(max_version=(1, 3))
            dmr.from_dlpack(capsule, runtime=runtime).close()
            with self.assertRaises(dmr.InvalidArgument):
                dmr.from_dlpack(capsule, runtime=runtime)
            tensor.close()

    def test_what_cannot_be_exchanged_is_an_error_and_nothing_is_deleted(self) -> None:
        with dmr.Runtime() as runtime:
            tensor = dmr.empty((16,), UINT8, runtime=runtime)
            for arguments in ({"copy": True}, {"dl_device": (1, 0)}):
                with self.assertRaises(BufferError):
                    tensor.__dlpack__(**arguments)
            with self.assertRaises(dmr.InvalidArgument):
                tensor.__dlpack__(stream=0)
            tensor.close()
            producer = Producer(64, True)
            producer.managed.tensor.ndim = -1
            with self.assertRaises(dmr.InvalidArgument) as raised:
                dmr.from_dlpack(producer, runtime=runtime)
            self.assertIn("ndim", str(raised.exception))
            producer.managed.tensor.ndim = 1
            producer.managed.major = 2
            with self.assertRaises(dmr.InvalidArgument) as raised:
                dmr.from_dlpack(producer, runtime=runtime)
            self.assertIn("version", str(raised.exception))
            self.assertEqual(producer.deletions, 0)
            producer.close()

    def test_a_read_only_tensor_stays_read_only(self) -> None:
        with dmr.Runtime() as runtime:
            producer = Producer(64, True, flags=1)
            tensor = dmr.from_dlpack(producer, runtime=runtime)
            self.assertTrue(tensor.read_only)
            with self.assertRaises(BufferError):
                tensor.__dlpack__()
            with self.assertRaises(dmr.Error):
                tensor.record_use(0, "write")
            again = dmr.from_dlpack(tensor, runtime=runtime)
            self.assertTrue(again.read_only)
            again.close()
            tensor.close()
            producer.wait(1)
            self.assertEqual(producer.deletions, 1)
            producer.close()


if __name__ == "__main__":
    unittest.main()
