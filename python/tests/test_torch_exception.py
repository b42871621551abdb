"""The exception that PyTorch's handlers get: a program in C++ with classes of the same names catches it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from dmr._library import LIBRARY

SOURCES = Path(__file__).resolve().parent / "exception"
HEADERS = SOURCES.parent.parent.parent / "crates/memory/dmr-capi/include"


class ExceptionTest(unittest.TestCase):
    """A program that is linked to a library of the name ``libc10.so``."""

    def test_it_is_pytorchs_own(self) -> None:
        with tempfile.TemporaryDirectory() as folder:

            def compile(*arguments: object) -> None:
                line = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *map(str, arguments)]
                subprocess.run(line, check=True, cwd=folder)

            compile("-fPIC", "-shared", "-Wl,-soname,libc10.so", SOURCES / "c10.cpp", "-o", "libc10.so")
            libraries = ["-L", folder, "-lc10", "-L", LIBRARY.parent, "-ldmr_torch", "-ldmr_capi"]
            compile("-I", HEADERS, SOURCES / "program.cpp", *libraries, "-o", "program")
            paths = [folder, str(LIBRARY.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            environment = dict(os.environ, LD_LIBRARY_PATH=os.pathsep.join(paths))
            done = subprocess.run([f"{folder}/program"], env=environment, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, "^OutOfMemoryError: dmr: cannot allocate 67108864 bytes on device 0: .*budget")


if __name__ == "__main__":
    unittest.main()
