"""The package on the simulated driver, or a GPU: memory by address."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import driver

import dmr

KIB = 1 << 10
MIB = 1 << 20


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in another process."""
    folder = Path(__file__).parent
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)


class RuntimeTest(unittest.TestCase):
    """Memory of a runtime."""

    def setUp(self) -> None:
        driver.bind()

    def test_memory_is_allocated_used_and_freed(self) -> None:
        stream = driver.stream()
        with dmr.Runtime() as runtime:
            address = runtime.allocate(KIB, stream, "test")
            driver.fill(address, 7, KIB, stream)
            self.assertEqual(driver.read(address, KIB, stream), bytes([7]) * KIB)
            [block] = runtime.snapshot()
            self.assertEqual((block.address, block.bytes, block.stream, block.tag), (address, KIB, stream, "test"))
            usage = runtime.usage()
            self.assertEqual((usage.live, usage.limit, usage.remaining), (KIB, None, None))
            runtime.free(address)
            self.assertEqual(runtime.usage().live, 0)
            self.assertEqual(runtime.snapshot(), [])
            counts = runtime.statistics()
            self.assertEqual((counts.bytes.peak, counts.allocations.total, counts.frees), (KIB, 1, 1))
            runtime.retire_stream(stream)
            driver.destroy(stream)
            runtime.reap(wait=True)
            self.assertGreater(runtime.trim(), 0)
            self.assertEqual(runtime.usage().reserved, 0)

    def test_a_block_is_used_on_two_streams(self) -> None:
        a, b = driver.stream(), driver.stream()
        with dmr.Runtime() as runtime:
            for byte in range(8):
                address = runtime.allocate(KIB, a)
                driver.fill(address, byte, KIB, a)
                runtime.record_use(address, a, "write")
                runtime.wait_for_uses(address, b, "read")
                self.assertEqual(driver.read(address, KIB, b), bytes([byte]) * KIB)
                runtime.record_use(address, b, "read")
                runtime.free(address)

    def test_errors_are_exceptions_that_say_what_to_do(self) -> None:
        with dmr.Runtime(limit=4 * MIB) as runtime:
            with self.assertRaises(dmr.OutOfMemory) as raised:
                runtime.allocate(64 * MIB)
            self.assertIsInstance(raised.exception, MemoryError)
            self.assertEqual(raised.exception.status, "out_of_budget")
            self.assertIn("64 MiB requested", str(raised.exception))
            address = runtime.allocate(KIB)
            runtime.free(address)
            with self.assertRaises(dmr.Error) as raised:
                runtime.free(address)
            self.assertEqual(raised.exception.status, "unknown_address")
            with self.assertRaises(dmr.InvalidArgument):
                runtime.allocate(-1)
        with self.assertRaises(dmr.Error):
            runtime.allocate(KIB)
        for wrong in ({"backend": "none"}, {"limit": 0}, {"limit": 1, "shared_limit": 1}, {"device": 99}):
            with self.assertRaises(dmr.Error):
                dmr.Runtime(**wrong)

    def test_nothing_is_allocated_for_nothing(self) -> None:
        with dmr.Runtime() as runtime:
            self.assertEqual(runtime.allocate(0), 0)
            runtime.free(0)

    def test_a_stream_that_captures_is_refused(self) -> None:
        stream = driver.stream()
        with dmr.Runtime() as runtime:
            runtime.free(runtime.allocate(KIB, stream))
            driver.begin_capture(stream)
            with self.assertRaises(dmr.StreamCapturing):
                runtime.allocate(KIB, stream)
            driver.end_capture(stream)
            runtime.free(runtime.allocate(KIB, stream))

    def test_threads_allocate_at_the_same_time(self) -> None:
        with dmr.Runtime() as runtime:

            def work() -> None:
                driver.bind()
                stream = driver.stream()
                for turn in range(200):
                    addresses = [runtime.allocate(KIB << (turn + at) % 8, stream) for at in range(8)]
                    for address in addresses:
                        runtime.free(address)
                runtime.retire_stream(stream)
                driver.destroy(stream)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(runtime.usage().live, 0)
            self.assertEqual(runtime.statistics().allocations.total, 4 * 200 * 8)

    def test_a_log_has_every_call(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.csv"
            with dmr.Runtime(log=path) as runtime:
                runtime.free(runtime.allocate(KIB, tag="logged"))
            self.assertEqual(path.read_text().count("logged"), 2)

    @unittest.skipUnless(hasattr(os, "fork"), "forks")
    def test_a_recording_is_appended_to_and_written(self) -> None:
        stream = driver.stream()
        with tempfile.TemporaryDirectory() as folder:
            appended = Path(folder) / "run.rec"
            written = Path(folder) / "now.rec"
            with dmr.record(appended) as recording, dmr.Runtime() as runtime:
                runtime.free(runtime.allocate(KIB, stream, "recorded by Python"))
                recording.write(written)
                with self.assertRaisesRegex(dmr.InvalidArgument, "started already"):
                    dmr.record()
            for path in (appended, written):
                self.assertTrue(path.read_bytes().startswith(b"\x89dmrec"))
                self.assertIn(b"recorded by Python", path.read_bytes())

    def test_a_forked_child_is_refused(self) -> None:
        with dmr.Runtime() as runtime:
            child = os.fork()
            if child == 0:
                try:
                    runtime.allocate(KIB)
                    os._exit(1)
                except dmr.ForkedProcess:
                    os._exit(0)
                except BaseException:
                    os._exit(2)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            runtime.free(runtime.allocate(KIB))


class ProcessTest(unittest.TestCase):
    """What belongs to a process: its settings, and the command line."""

    def test_settings_come_before_the_first_use(self) -> None:
        program = """
import dmr
dmr.limit(8 << 20)
assert dmr.usage().limit == 8 << 20
try:
    dmr.limit(16 << 20)
except dmr.Error as error:
    assert "before the first allocation" in str(error), error
else:
    raise SystemExit("not refused")
"""
        done = python("-c", program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_two_processes_share_a_limit(self) -> None:
        program = """
import os, subprocess, sys, dmr
dmr.limit(8 << 20, shared=True, group=f"test-{os.getppid() if len(sys.argv) > 1 else os.getpid()}")
memory = dmr.runtime()
if len(sys.argv) == 1:
    held = memory.allocate(5 << 20)
    done = subprocess.run([sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2], "child"])
    sys.exit(done.returncode)
try:
    memory.allocate(5 << 20)
except dmr.OutOfMemory:
    memory.free(memory.allocate(1 << 20))
else:
    raise SystemExit("not refused")
"""
        done = python("-c", program)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_the_command_line(self) -> None:
        done = python("-m", "dmr", "info")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("device 0", done.stdout)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script.py"
            script.write_text("import sys, dmr; print(dmr.usage().limit, sys.argv[1:])")
            done = python("-m", "dmr", "run", "--limit", "2MiB", str(script), "--an", "argument")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout.strip(), f"{2 * MIB} ['--an', 'argument']")
        done = python("-m", "dmr", "info", "--device", "99")
        self.assertEqual(done.returncode, 1)
        self.assertIn("99", done.stdout)


if __name__ == "__main__":
    unittest.main()
