"""Programs on PyTorch, one for each process: ``python torch_programs.py WAY PROGRAM``. Each prints a line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch

import dmr

GIB = 1 << 30
MIB = 1 << 20
WAYS = ["own", "expandable", "segments", "allocator", "rmm"]


def begin(way: str) -> None:
    """Chooses where PyTorch has its memory from."""
    if way == "segments":
        import dmr.torch

        dmr.torch.use()
    elif way == "allocator":
        import dmr.torch

        dmr.torch.use_as_allocator()
    elif way == "rmm":
        import rmm
        from rmm.allocators.torch import rmm_torch_allocator

        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource()))
        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)


def used_bytes() -> int:
    """Returns the bytes of the device that are in use, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return total - free


class Model(torch.nn.Module):
    """A small transformer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def train(steps: int) -> dict[str, object]:
    """Trains with batches of changing lengths; the losses as the bits of floats."""
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    before = used_bytes()
    model = Model(8192, 512, 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(2)
    losses = []
    for step in range(steps + 10):
        if step == 10:
            torch.cuda.synchronize()
            start = time.perf_counter()
        length = int(torch.randint(64, 512, (1,), generator=random))
        tokens = torch.randint(0, 8192, (16, length + 1), generator=random).cuda()
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return {"losses": [float(loss).hex() for loss in losses], "seconds": seconds, "device_bytes": used_bytes() - before}


def side_stream(records: bool) -> dict[str, object]:
    """Drops a tensor that a slow kernel on a side stream is about to read."""
    side = torch.cuda.Stream()
    wrong = 0
    for turn in range(20):
        tensor = torch.full((8 * MIB,), turn, dtype=torch.int32, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            copy = tensor.clone()
        if records:
            tensor.record_stream(side)
        del tensor
        for _ in range(4):
            torch.full((8 * MIB,), -1, dtype=torch.int32, device="cuda")
        side.synchronize()
        wrong += int((copy != turn).any())
    return {"wrong": wrong}


def out_of_memory() -> dict[str, object]:
    """Allocates beyond the limit, and goes on."""
    kept = torch.ones(MIB, device="cuda")
    try:
        torch.empty(64 * GIB, dtype=torch.uint8, device="cuda")
    except Exception as error:  # noqa: BLE001
        name = f"{type(error).__module__}.{type(error).__name__}"
        text = str(error)
        is_out_of_memory = isinstance(error, torch.cuda.OutOfMemoryError)
    after = float(kept.sum() + torch.ones(MIB, device="cuda").sum())
    return {"error": name, "is_out_of_memory": is_out_of_memory, "text": text[:400], "goes_on": after == 2 * MIB}


def pairs() -> dict[str, object]:
    """Times an allocation and a free, by size, in nanoseconds."""
    result: dict[str, object] = {}
    for bytes_ in (512, 64 << 10, 1 << 20, 32 << 20):
        empty = torch.empty
        for _ in range(2000):
            empty(bytes_, dtype=torch.uint8, device="cuda")
        best = []
        for _ in range(7):
            start = time.perf_counter_ns()
            for _ in range(5000):
                empty(bytes_, dtype=torch.uint8, device="cuda")
            best.append((time.perf_counter_ns() - start) / 5000)
        result[str(bytes_)] = sorted(best)[3]
    return {"empty_ns": result}


def graph() -> dict[str, object]:
    """Captures a graph, and replays it between other work."""
    x = torch.zeros(MIB, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = (x * 2 + 1).relu()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x * 2 + 1).relu()
    right = True
    for value in range(10):
        x.fill_(value)
        noise = torch.randn(MIB, device="cuda")
        captured.replay()
        right &= bool((y == 2 * value + 1).all())
        del noise
    return {"right": right}


def share(megabytes: int, seconds: float) -> dict[str, object]:
    """Allocates up to a size and frees, again and again, and counts the refusals."""
    refused = 0
    made = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        held = []
        try:
            for _ in range(megabytes // 64):
                held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1))
                made += 1
        except RuntimeError:
            refused += 1
        del held
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return {"made": made, "refused": refused}


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("program", choices=["train", "side_stream", "without_record", "out_of_memory", "pairs", "graph", "share"])
    parser.add_argument("--limit-mib", type=int)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--share-mib", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.limit_mib:
        dmr.limit(arguments.limit_mib * MIB, shared=arguments.shared)
    begin(arguments.way)
    programs = {
        "train": lambda: train(arguments.steps),
        "side_stream": lambda: side_stream(True),
        "without_record": lambda: side_stream(False),
        "out_of_memory": out_of_memory,
        "pairs": pairs,
        "graph": graph,
        "share": lambda: share(arguments.share_mib, 5.0),
    }
    outcome = programs[arguments.program]()
    outcome.update(way=arguments.way, program=arguments.program)
    if arguments.way in ("own", "expandable", "segments"):
        outcome["torch_reserved"] = torch.cuda.max_memory_reserved()
    if arguments.way in ("segments", "allocator"):
        usage = dmr.usage()
        outcome["dmr_reserved"] = usage.reserved
        outcome["dmr_peak"] = dmr.statistics().bytes.peak
    print(json.dumps(outcome))
    sys.stdout.flush()
    if os.environ.get("DMR_EXIT_NOW"):
        os._exit(0)


if __name__ == "__main__":
    main()
