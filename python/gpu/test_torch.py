"""PyTorch on memory of dmr: needs a GPU and PyTorch. ``python -m unittest`` in this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).parent


def start(way: str, program: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a program in a process of its own."""
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    if way == "expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    line = [sys.executable, str(HERE / "torch_programs.py"), way, program, *arguments]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> dict[str, object]:
    """Returns the line that the program has printed."""
    out, err = process.communicate(timeout=300)
    if process.returncode != 0:
        raise AssertionError(f"{process.args}: {process.returncode}\n{err[-3000:]}")
    line = json.loads(out.strip().splitlines()[-1])
    print({key: value for key, value in line.items() if key != "losses"}, file=sys.stderr)
    return line


def run(way: str, program: str, *arguments: str) -> dict[str, object]:
    """Runs a program in a process of its own."""
    return end(start(way, program, *arguments))


class TorchTest(unittest.TestCase):
    """Both ways of PyTorch."""

    def test_training_has_the_losses_of_pytorchs_own_allocator(self) -> None:
        own = run("own", "train")
        for way in ("expandable", "segments", "allocator"):
            with self.subTest(way):
                self.assertEqual(run(way, "train")["losses"], own["losses"])

    def test_a_tensor_that_a_side_stream_reads_is_right_when_it_is_recorded(self) -> None:
        for way in ("own", "segments", "allocator"):
            with self.subTest(way):
                self.assertEqual(run(way, "side_stream")["wrong"], 0)

    def test_it_is_wrong_when_it_is_not(self) -> None:
        for way in ("segments", "allocator"):
            with self.subTest(way):
                self.assertGreater(run(way, "without_record")["wrong"], 0)

    def test_an_allocation_beyond_the_limit_is_pytorchs_error_and_the_program_goes_on(self) -> None:
        for way in ("segments", "allocator"):
            with self.subTest(way):
                line = run(way, "out_of_memory", "--limit-mib", "256")
                self.assertTrue(line["is_out_of_memory"], line)
                self.assertTrue(line["goes_on"], line)

    def test_graphs_go_on_working_with_segments(self) -> None:
        for way in ("own", "segments"):
            with self.subTest(way):
                self.assertTrue(run(way, "graph")["right"])

    def test_two_processes_share_a_limit_of_less_than_both_want(self) -> None:
        for way in ("segments", "allocator"):
            with self.subTest(way):
                arguments = ["--limit-mib", "1536", "--shared", "--share-mib", "1024"]
                both = [start(way, "share", *arguments) for _ in range(2)]
                for line in [end(process) for process in both]:
                    self.assertGreater(line["made"], 0, line)


if __name__ == "__main__":
    unittest.main()
