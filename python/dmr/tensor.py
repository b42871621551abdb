"""Tensors, by DLPack: from PyTorch, CuPy and others, and to them.

>>> import dmr
>>> x = dmr.from_dlpack(torch_tensor, stream=side.cuda_stream)   # ordered on that stream
>>> y = torch.from_dlpack(x)                                     # and back
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int64, c_uint32, c_uint64, c_void_p, py_object, sizeof
from typing import Any, Sequence

from ._library import Error, InvalidArgument, RawTensor, library
from ._runtime import Runtime
from ._runtime import runtime as runtime_of

#: The newest version of DLPack that is read and written.
DLPACK_VERSION = (1, 3)

_CUDA = 2
#: Devices whose memory can be used on the GPU: CUDA, page-locked and managed memory.
_DEVICES = (_CUDA, 3, 13)
_LEGACY, _PER_THREAD, _NO_SYNC = 1, 2, -1
_READY_DONE, _READY_STREAM = 0, 1
_CONSUMER_STREAM, _CONSUMER_WAITS, _CONSUMER_UNKNOWN = 0, 1, 2

# By whether it has a version: the name of a capsule, and of one whose tensor was taken. They live as
# long as the process, because capsules refer to them.
_NAMES = {False: (b"dltensor", b"used_dltensor"), True: (b"dltensor_versioned", b"used_dltensor_versioned")}

_python = ctypes.pythonapi


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """Returns a function of the interpreter, with types of its own for this module."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, _python))


_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, py_object, c_char_p)
_pointer = _function("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)
_set_name = _function("PyCapsule_SetName", ctypes.c_int, py_object, c_char_p)
_new = _function("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)


def _check_stream(stream: int | None) -> int:
    """Returns the number of a stream as the array API standard has it."""
    if stream is None:
        return _LEGACY
    if not isinstance(stream, int) or isinstance(stream, bool) or stream < _NO_SYNC or stream == 0:
        raise InvalidArgument(
            "invalid_argument",
            f"stream {stream!r}: pass a handle, None or 1 for the legacy default stream, 2 for the per-thread one, or "
            "-1 for no order",
        )
    return stream


class Tensor:
    """Elements in device memory with a type, a shape and strides.

    Work that is submitted elsewhere is ordered by :meth:`record_use` and :meth:`wait_for_uses`, as
    for a block. The memory is freed, or given back to its owner, when the tensor and all consumers
    that it was exported to are gone, after the recorded uses.
    """

    def __init__(self, runtime: Runtime, handle: int) -> None:
        self._runtime = runtime
        self._handle = c_void_p(handle)
        raw = RawTensor(sizeof(RawTensor), 1)
        library().call("dmr_tensor_describe", runtime._handle, self._handle, byref(raw))
        #: The lowest address of an element.
        self.address: int = raw.address
        #: The bytes from there to the end of the highest element.
        self.nbytes: int = raw.bytes
        #: The address of the element whose indices are 0.
        self.data_ptr: int = raw.first_element
        #: The code, the bits and the lanes of the type, as DLPack has them.
        self.dtype: tuple[int, int, int] = (raw.type_code, raw.type_bits, raw.type_lanes)
        self.shape: tuple[int, ...] = tuple(raw.shape[: raw.dimensions])
        #: In elements.
        self.strides: tuple[int, ...] = tuple(raw.strides[: raw.dimensions])
        self.read_only: bool = bool(raw.read_only)

    def record_use(self, stream: int, access: str = "read-write") -> None:
        """Records that work which was submitted to a stream so far uses the tensor."""
        if self.address:
            self._runtime.record_use(self.address, stream, access)

    def wait_for_uses(self, stream: int, access: str = "read-write") -> None:
        """Makes a stream wait for the recorded work that a use of the tensor must come after."""
        if self.address:
            self._runtime.wait_for_uses(self.address, stream, access)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CUDA, self._runtime.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        number = _check_stream(stream)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.__dlpack_device__()}, not on {tuple(dl_device)}: copy it there")
        if copy:
            raise BufferError("a copy was asked for: copy the tensor after the exchange")
        versioned = max_version is not None and max_version[0] >= 1
        if self.read_only and not versioned:
            raise BufferError("a read-only tensor needs max_version=(1, 0) or later, which has a flag for it")
        if number == _NO_SYNC:
            consumer, handle = _CONSUMER_UNKNOWN, 0
        elif number == _PER_THREAD:
            consumer, handle = _CONSUMER_WAITS, number
        else:
            consumer, handle = _CONSUMER_STREAM, 0 if number == _LEGACY else number
        managed = c_void_p()
        arguments = (self._runtime._handle, self._handle, int(versioned), consumer, handle, byref(managed))
        library().call("dmr_tensor_to_dlpack", *arguments)
        # A native function: one of Python cannot run while the exception of a consumer is raised.
        return _new(managed, _NAMES[versioned][0], library().address_of("dmr_capsule_destroy"))

    def close(self) -> None:
        """Destroys the tensor. Consumers that it was exported to keep the memory."""
        handle, self._handle = self._handle, c_void_p()
        if handle and self._runtime._handle:
            library().call("dmr_tensor_destroy", self._runtime._handle, handle)

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, Error):
            # It was not made, or its runtime is closed, which has destroyed it.
            pass

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dmr.Tensor of {self.shape} at {self.data_ptr:#x}>"


def empty(
    shape: Sequence[int],
    dtype: tuple[int, int, int],
    *,
    stream: int = 0,
    tag: str | None = None,
    runtime: Runtime | None = None,
) -> Tensor:
    """Allocates a tensor for work on a stream; its content is undefined. ``dtype`` has the code, the
    bits and the lanes of DLPack: ``(2, 32, 1)`` is float32."""
    owner = runtime or runtime_of()
    sizes = (c_int64 * len(shape))(*shape)
    handle = c_void_p()
    name = tag.encode() if tag is not None else None
    code, bits, lanes = dtype
    arguments = (owner._handle, code, bits, lanes, sizes, len(shape), stream, name, byref(handle))
    library().call("dmr_tensor_create", *arguments)
    return Tensor(owner, handle.value or 0)


def from_dlpack(array: Any, *, stream: int | None = None, runtime: Runtime | None = None) -> Tensor:
    """Makes a tensor of another library's, without a copy: of an object with ``__dlpack__``, or of a
    capsule.

    ``stream`` is the one on which the tensor is used first, in the numbers of the array API standard:
    a handle, ``None`` or 1 for the legacy default stream, 2 for the per-thread one, -1 for no order.
    The producer makes it wait for its work. A capsule must have been made for that stream.
    """
    number = _check_stream(stream)
    owner = runtime or runtime_of()
    capsule = array
    if hasattr(array, "__dlpack__"):
        kind, device = array.__dlpack_device__()
        if int(kind) not in _DEVICES or (int(kind) == _CUDA and device != owner.device):
            raise BufferError(f"the array is on device {(int(kind), device)}, the runtime on {(_CUDA, owner.device)}")
        try:
            capsule = array.__dlpack__(stream=number, max_version=DLPACK_VERSION)
        except TypeError:
            # A producer of before version 1.
            capsule = array.__dlpack__(stream=number)
    versioned = bool(_is_valid(capsule, _NAMES[True][0]))
    name, used = _NAMES[versioned]
    if not versioned and not _is_valid(capsule, name):
        raise InvalidArgument("invalid_argument", "no capsule of DLPack, or one whose tensor was taken before")
    ready = _READY_DONE if number == _NO_SYNC else _READY_STREAM
    home = number if number > _PER_THREAD else 0
    handle = c_void_p()
    arguments = (owner._handle, _pointer(capsule, name), int(versioned), ready, max(number, 0), home, byref(handle))
    library().call("dmr_tensor_from_dlpack", *arguments)
    _set_name(capsule, used)
    return Tensor(owner, handle.value or 0)


__all__ = ["DLPACK_VERSION", "Tensor", "empty", "from_dlpack"]
