"""The program of two_streams.c, through ctypes."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(driver, name)(*arguments)
    if code:
        sys.exit(f"{name}: {code}")


context, writer, reader, written = (ctypes.c_void_p() for _ in range(4))
memory = ctypes.c_uint64()
size = ctypes.c_size_t(64)
data = ctypes.create_string_buffer(64)
device = ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuStreamCreate", ctypes.byref(writer), 1)
call("cuStreamCreate", ctypes.byref(reader), 1)
call("cuEventCreate", ctypes.byref(written), 2)
call("cuMemAlloc_v2", ctypes.byref(memory), size)
call("cuMemsetD8Async", memory, 9, size, writer)
call("cuEventRecord", written, writer)
if sys.argv[1:] == ["in-order"]:
    call("cuStreamWaitEvent", reader, written, 0)
call("cuMemcpyDtoHAsync_v2", data, memory, size, reader)
call("cuStreamSynchronize", reader)
print(f"read {data.raw[63]}")
