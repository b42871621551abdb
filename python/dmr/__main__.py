"""``python -m dmr info`` and ``python -m dmr run SCRIPT``."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from . import Error, Runtime, configure, limit, log
from ._library import LIBRARY, SIMULATED_DRIVER

_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def bytes_of(text: str) -> int:
    """Returns a number of bytes: ``8G``, ``512MiB``, ``1000``."""
    lower = text.strip().lower().removesuffix("ib").removesuffix("b")
    shift = _UNITS.get(lower[-1:], 0)
    try:
        number = float(lower[:-1] if shift else lower)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no number of bytes, such as 8G or 512M") from None
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text}: it must be above 0")
    return int(number * (1 << shift))


def simulate() -> None:
    """Runs the process anew with the simulated driver in front of the system's."""
    folder = str(SIMULATED_DRIVER.parent)
    paths = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([folder, *filter(None, paths)])
        os.execv(sys.executable, [sys.executable, "-m", "dmr", *sys.argv[1:]])


def info(device: int) -> int:
    """Prints the device and its memory."""
    print(f"dmr, {LIBRARY}")
    try:
        with Runtime(device) as runtime:
            address = runtime.allocate(1 << 20)
            runtime.free(address)
            print(f"device {device}: allocates and frees; reserved {runtime.usage().reserved >> 20} MiB for that")
    except Error as error:
        print(f"device {device}: {error}")
        return 1
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Runs a program whose libraries have their memory from dmr."""
    if arguments.limit is not None:
        limit(arguments.limit, shared=arguments.shared, device=arguments.device)
    if arguments.log is not None:
        log(arguments.log, device=arguments.device)
    if arguments.backend is not None:
        configure(arguments.device, backend=arguments.backend)
    for name in arguments.use:
        if name == "torch":
            from . import torch as module

            module.use(arguments.device)
        elif name == "torch-allocator":
            from . import torch as module

            module.use_as_allocator()
        elif name == "cupy":
            from . import cupy

            cupy.use()
        else:
            from . import numba

            numba.use()
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
    runpy.run_path(arguments.script, run_name="__main__")
    return 0


def main() -> int:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m dmr", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    about = commands.add_parser("info", help="show the device")
    of = commands.add_parser("run", help="run a program with memory of dmr")
    for command in (about, of):
        command.add_argument("--simulated", action="store_true", help="on the simulated driver")
        command.add_argument("--device", type=int, default=0, help="CUDA ordinal")
    of.add_argument("--use", action="append", choices=["torch", "torch-allocator", "cupy", "numba"], default=[],
                    help="the library that has its memory from dmr; may be given several times")
    of.add_argument("--limit", type=bytes_of, help="the most bytes that the process takes, such as 8G")
    of.add_argument("--shared", action="store_true", help="the limit is that of all processes of the user")
    of.add_argument("--log", help="CSV file of all allocations and frees")
    of.add_argument("--backend", help="pool, async, direct or direct-tracked")
    of.add_argument("script")
    of.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.simulated:
        simulate()
    try:
        return info(arguments.device) if arguments.command == "info" else run(arguments)
    except Error as error:
        print(f"dmr: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
