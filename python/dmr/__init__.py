"""Stream-ordered GPU memory: a fast pool with a hard limit, for PyTorch, CuPy and Numba.

>>> import dmr
>>> dmr.limit(8 << 30)                      # bytes; or shared=True, for all processes of the user
>>> import dmr.torch
>>> dmr.torch.use()                         # PyTorch has its memory from dmr from here on
>>> print(dmr.usage())

``python -m dmr info`` shows the device, ``python -m dmr run script.py`` runs a program with this
memory, or with ``--simulated`` on the simulated driver.
"""

from ._library import (
    DeviceLost,
    Error,
    ForkedProcess,
    InvalidArgument,
    OutOfMemory,
    StreamCapturing,
)
from .arrow import Column, from_arrow
from ._runtime import (
    Block,
    Counter,
    Recording,
    Runtime,
    Statistics,
    Usage,
    configure,
    limit,
    log,
    record,
    runtime,
    statistics,
    usage,
)
from .tensor import Tensor, empty, from_dlpack

__all__ = [
    "Block",
    "Column",
    "Counter",
    "DeviceLost",
    "Error",
    "ForkedProcess",
    "InvalidArgument",
    "OutOfMemory",
    "Recording",
    "Runtime",
    "Statistics",
    "StreamCapturing",
    "Tensor",
    "Usage",
    "configure",
    "empty",
    "from_arrow",
    "from_dlpack",
    "limit",
    "log",
    "record",
    "runtime",
    "statistics",
    "usage",
]
