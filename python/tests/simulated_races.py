"""What the simulated driver finds: run by name, with the simulated driver only."""

from __future__ import annotations

import subprocess
import sys
import unittest
from pathlib import Path


class RaceTest(unittest.TestCase):
    """Programs that leave something out."""

    def test_memory_that_a_side_stream_uses_without_a_record_is_a_race(self) -> None:
        program = "import test_torch_shim; test_torch_shim.side_stream(records=False)"
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
        self.assertEqual(done.returncode, 66, done.stderr)
        self.assertIn("write-after-write race", done.stderr)

    def test_a_column_without_its_event_is_a_race_with_its_producer(self) -> None:
        program = "import test_arrow; test_arrow.read_unordered()"
        done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
        self.assertEqual(done.returncode, 66, done.stderr)
        self.assertIn("read-after-write race", done.stderr)


if __name__ == "__main__":
    unittest.main()
