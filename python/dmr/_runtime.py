"""Runtimes: a device, its memory, and the streams that have been used with it."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_size_t, c_uint64, c_void_p, sizeof
from dataclasses import dataclass

from ._library import (
    Config,
    Error,
    InvalidArgument,
    RawBlock,
    RawStatistics,
    RawUsage,
    library,
)

BACKENDS = {"default": 0, "pool": 1, "async": 2, "direct": 3, "direct-tracked": 4}
_NO_PAGES = 2**64 - 1
_ACCESS = {"read": 1, "write": 2, "read-write": 3}


@dataclass(frozen=True)
class Usage:
    """The memory of a runtime, in bytes."""

    #: Requested bytes of live blocks.
    live: int
    #: Requested bytes of blocks that were freed and are perhaps still used by the device.
    retired: int
    #: Bytes that were taken from the driver, in use or not.
    reserved: int
    #: Requested bytes of all allocations so far.
    total_allocated: int
    #: Requested bytes of all frees so far.
    total_freed: int
    #: The limit, or ``None``.
    limit: int | None
    #: What is left of the limit, or ``None``.
    remaining: int | None


@dataclass(frozen=True)
class Counter:
    """A number that goes up and down: its value, its highest value, and the sum of all additions."""

    current: int
    peak: int
    total: int


@dataclass(frozen=True)
class Statistics:
    """The counts of a runtime, all of one instant."""

    bytes: Counter
    allocations: Counter
    frees: int
    failures: int


@dataclass(frozen=True)
class Block:
    """A live block."""

    address: int
    bytes: int
    reserved_bytes: int
    #: The handle of the stream that it was allocated on; 0 for the legacy default stream.
    stream: int
    tag: str


class Runtime:
    """A device and its memory.

    ``device`` is a CUDA ordinal. ``backend`` is ``"pool"`` (the default, if the environment variable
    ``DMR_BACKEND`` names no other), ``"async"``, ``"direct"`` or ``"direct-tracked"``; ``compact``
    makes the pool reserve less memory and take more time, and ``page_bytes`` sets the size of its
    pages (0: none). ``limit`` is the most bytes that this process takes from the device,
    ``shared_limit`` the most that all processes of the user take together, all of which must ask for
    the same; ``group`` names the processes that share it. ``log`` is the name of a CSV file of all
    allocations and frees, compressed if it ends in ``.gz``.

    Streams are handles (integers); 0 is the legacy default stream. Any thread may call any method.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        backend: str = "default",
        compact: bool = False,
        page_bytes: int | None = None,
        limit: int | None = None,
        shared_limit: int | None = None,
        group: str | None = None,
        log: os.PathLike[str] | str | None = None,
        statistics: bool = True,
        max_streams: int = 0,
    ) -> None:
        if backend not in BACKENDS:
            raise InvalidArgument("invalid_argument", f"no backend {backend!r}: one of {', '.join(BACKENDS)}")
        for name, limit_bytes in (("limit", limit), ("shared_limit", shared_limit)):
            if limit_bytes is not None and limit_bytes <= 0:
                raise InvalidArgument("invalid_argument", f"{name} is {limit_bytes}: it must be above 0")
        config = Config()
        library().call("dmr_config_init", byref(config), sizeof(config))
        config.device = device
        config.backend = BACKENDS[backend]
        config.compact = compact
        config.statistics = statistics
        config.max_streams = max_streams
        if page_bytes is not None:
            config.page_bytes = page_bytes or _NO_PAGES
        config.budget_bytes = limit or 0
        config.shared_budget_bytes = shared_limit or 0
        config.shared_budget_group = group.encode() if group else None
        config.log_path = os.fsencode(log) if log is not None else None
        handle = c_void_p()
        library().call("dmr_runtime_create", byref(config), byref(handle))
        self._handle = handle
        self._device = device

    @property
    def device(self) -> int:
        """The CUDA ordinal of the device."""
        return self._device

    @property
    def handle(self) -> int:
        """The ``dmr_runtime*``, for programs that call the C interface."""
        return self._handle.value or 0

    def allocate(self, bytes: int, stream: int = 0, tag: str | None = None) -> int:
        """Allocates memory for work on a stream; returns its address. For 0 bytes that is 0."""
        address = c_uint64()
        if bytes < 0:
            raise InvalidArgument("invalid_argument", f"cannot allocate {bytes} bytes")
        if tag is None:
            library().call("dmr_allocate", self._handle, bytes, stream, byref(address))
        else:
            library().call("dmr_allocate_tagged", self._handle, bytes, stream, tag.encode(), byref(address))
        return address.value

    def free(self, address: int, stream: int | None = None) -> None:
        """Frees a block. Its memory is used again after the work that was submitted so far to the
        stream of its allocation and to ``stream``, and after all recorded uses."""
        if stream is None:
            library().call("dmr_free", self._handle, address)
        else:
            library().call("dmr_free_on", self._handle, address, stream)

    def record_use(self, address: int, stream: int, access: str = "read-write") -> None:
        """Records that work which was submitted to a stream so far uses a block. ``access`` is
        ``"read"``, ``"write"`` or ``"read-write"``."""
        library().call("dmr_record_use", self._handle, address, stream, _ACCESS[access])

    def wait_for_uses(self, address: int, stream: int, access: str = "read-write") -> None:
        """Makes a stream wait for the recorded work that a use of the block must come after."""
        library().call("dmr_wait_for_uses", self._handle, address, stream, _ACCESS[access])

    def retire_stream(self, stream: int) -> None:
        """Ends the use of a stream. Call it before the stream is destroyed."""
        library().call("dmr_stream_retire", self._handle, stream)

    def usage(self) -> Usage:
        """Returns the memory of the runtime."""
        raw = RawUsage(sizeof(RawUsage), 1)
        library().call("dmr_runtime_usage", self._handle, byref(raw))
        limited = raw.limit != 0
        return Usage(
            live=raw.live,
            retired=raw.retired,
            reserved=raw.reserved,
            total_allocated=raw.total_allocated,
            total_freed=raw.total_freed,
            limit=raw.limit if limited else None,
            remaining=raw.remaining if limited else None,
        )

    def statistics(self) -> Statistics:
        """Returns the counts of the runtime."""
        raw = RawStatistics(sizeof(RawStatistics), 1)
        library().call("dmr_runtime_statistics", self._handle, byref(raw))

        def counter(it: ctypes.Structure) -> Counter:
            return Counter(it.current, it.peak, it.total)

        return Statistics(counter(raw.bytes), counter(raw.allocations), raw.frees, raw.failures)

    def snapshot(self) -> list[Block]:
        """Returns the live blocks."""
        count = c_size_t()
        library().call("dmr_runtime_snapshot", self._handle, None, sizeof(RawBlock), 0, byref(count))
        while True:
            # Other threads may allocate meanwhile.
            capacity = count.value + count.value // 8 + 16
            blocks = (RawBlock * capacity)()
            library().call("dmr_runtime_snapshot", self._handle, blocks, sizeof(RawBlock), capacity, byref(count))
            if count.value <= capacity:
                break
        return [
            Block(raw.address, raw.bytes, raw.reserved_bytes, raw.stream or 0, raw.tag.decode(errors="replace"))
            for raw in blocks[: count.value]
        ]

    def reap(self, wait: bool = False) -> int:
        """Frees the retired blocks whose work is done; with ``wait``, all. Returns their bytes."""
        freed = c_uint64()
        library().call("dmr_runtime_reap", self._handle, int(wait), byref(freed))
        return freed.value

    def trim(self, keep_bytes: int = 0) -> int:
        """Returns unused memory to the driver while more than ``keep_bytes`` are reserved. Returns
        the bytes."""
        returned = c_uint64()
        library().call("dmr_runtime_trim", self._handle, keep_bytes, byref(returned))
        return returned.value

    def close(self) -> None:
        """Frees what is left, waits for the work of its streams, and returns the memory to the
        driver."""
        if self._handle:
            library().call("dmr_runtime_destroy", self._handle)
            self._handle = c_void_p()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dmr.Runtime of device {self._device}>"


# The settings of the runtime of each device, until it is made, and the runtimes.
_lock = threading.Lock()
_settings: dict[int, dict[str, object]] = {}
_runtimes: dict[int, Runtime] = {}


def configure(device: int = 0, **settings: object) -> None:
    """Sets settings of :class:`Runtime` for the runtime of a device, before it is first used."""
    with _lock:
        if device in _runtimes:
            raise Error(
                "other",
                f"the runtime of device {device} is in use: set its {', '.join(sorted(settings))} before the first allocation",
            )
        _settings.setdefault(device, {}).update(settings)


def runtime(device: int = 0) -> Runtime:
    """Returns the runtime of a device, which is made when it is first needed and lives as long as
    the process. :func:`limit`, :func:`log` and PyTorch, CuPy and Numba work on it."""
    with _lock:
        known = _runtimes.get(device)
        if known is None:
            known = Runtime(device, **_settings.get(device, {}))  # type: ignore[arg-type]
            _runtimes[device] = known
        return known


def limit(bytes: int, *, shared: bool = False, group: str | None = None, device: int = 0) -> None:
    """Limits the memory that this process takes from a device, before it is first used. With
    ``shared``, the memory of all processes of the user that ask for the same limit."""
    if shared:
        configure(device, shared_limit=bytes, group=group)
    else:
        configure(device, limit=bytes)


def log(path: os.PathLike[str] | str, *, device: int = 0) -> None:
    """Logs every allocation and free to a CSV file, from the first one on."""
    configure(device, log=path)


class Recording:
    """What the memory of the process does, appended to a file until it is stopped, or the process
    ends. As a context it stops at its end."""

    def write(self, path: os.PathLike[str] | str) -> None:
        """Writes the last events of each thread, and the memory as it is now, to another file."""
        library().call("dmr_recording_write", os.fsencode(path))

    def stop(self) -> None:
        """Ends the file."""
        library().call("dmr_recording_stop")

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def record(
    path: os.PathLike[str] | str | None = None,
    *,
    folder: os.PathLike[str] | str | None = None,
) -> Recording:
    """Records what the memory of the process does, on all devices: appends it to a file which
    ``dmr report`` reads, and with ``folder``, writes a file there when memory runs out."""
    names = [None if it is None else os.fsencode(it) for it in (folder, path)]
    library().call("dmr_recording_start", *names)
    return Recording()


def usage(device: int = 0) -> Usage:
    """Returns the memory of the runtime of a device."""
    return runtime(device).usage()


def statistics(device: int = 0) -> Statistics:
    """Returns the counts of the runtime of a device."""
    return runtime(device).statistics()
