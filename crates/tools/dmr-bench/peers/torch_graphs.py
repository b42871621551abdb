#!/usr/bin/env python3
"""The decode loop of `dmr-bench decode` in PyTorch: eager, and as CUDA graphs of three batch sizes.

The operations and the sizes are the same; the elementwise kernels and the attention are PyTorch's, so
compare memory and the host's time, not the device's. The graphs are captured twice:
  private : each graph has a pool of its own, the default of torch.cuda.graph
  shared  : all graphs have one pool, the largest batch first
One JSON line per result on stdout. `reserved_bytes` is what torch.cuda.memory_reserved has grown by
from before the captures until after them; cuBLAS's workspaces exist before. Without a GPU,
`--device cpu` runs the eager part only.
"""
import argparse, gc, json, math, sys, time

import torch


def out(**kw):
    sys.stdout.write(json.dumps({"bench": "torch", **kw}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


class Model:
    def __init__(self, a):
        g = torch.Generator(device=a.device).manual_seed(1)

        def matrix(rows, columns):
            x = torch.rand(rows, columns, generator=g, device=a.device) * 2 - 1
            return x / math.sqrt(a.hidden)

        self.a = a
        self.table, self.head = matrix(a.vocabulary, a.hidden), matrix(a.hidden, a.vocabulary)
        h = a.hidden
        self.layers = [(matrix(h, 3 * h), matrix(h, h), matrix(h, 4 * h), matrix(4 * h, h)) for _ in range(a.layers)]


class State:
    def __init__(self, model, rows):
        a = model.a
        heads = a.hidden // a.head
        self.rows = rows
        self.tokens = torch.zeros(rows, dtype=torch.long, device=a.device)
        self.position = torch.zeros(1, dtype=torch.long, device=a.device)
        self.at = torch.arange(a.context, device=a.device)
        self.history = torch.zeros(rows, a.context, dtype=torch.long, device=a.device)
        self.keys = [torch.zeros(rows, heads, a.context, a.head, device=a.device) for _ in range(a.layers)]
        self.values = [torch.zeros_like(k) for k in self.keys]

    def reset(self):
        for x in [self.tokens, self.position, self.history, *self.keys, *self.values]:
            x.zero_()
        self.tokens.copy_(torch.arange(self.rows, device=self.tokens.device) % 128)


def step(m, s):
    a = m.a
    heads = a.hidden // a.head

    def add_norm(x, y):
        x = x + y
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

    x = m.table[s.tokens]
    mask = (s.at <= s.position).view(1, 1, 1, -1)
    for (qkv, o, up, down), keys, values in zip(m.layers, s.keys, s.values):
        q, k, v = (t.view(s.rows, heads, 1, a.head) for t in (x @ qkv).split(a.hidden, dim=-1))
        keys.index_copy_(2, s.position, k)
        values.index_copy_(2, s.position, v)
        scores = (q @ keys.transpose(-1, -2)) / math.sqrt(a.head)
        y = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ values
        x = add_norm(x, y.reshape(s.rows, a.hidden) @ o)
        x = add_norm(x, torch.nn.functional.silu(x @ up) @ down)
    token = (x @ m.head).argmax(-1)
    s.tokens.copy_(token)
    s.history.index_copy_(1, s.position, token.view(-1, 1))
    s.position.add_(1)


def measure(a, s, one, **names):
    """As dmr-bench: unmeasured, with a wait after each step, with one at the end."""
    s.reset()
    for _ in range(a.tokens):
        one()
    history = s.history.cpu()
    s.reset()
    sync = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    sync()
    host = []
    for _ in range(a.tokens):
        start = time.perf_counter_ns()
        one()
        host.append(time.perf_counter_ns() - start)
        sync()
    s.reset()
    sync()
    start = time.perf_counter_ns()
    for _ in range(a.tokens):
        one()
    sync()
    total = (time.perf_counter_ns() - start) / a.tokens
    assert torch.equal(history, s.history.cpu()), "two runs of one variant have different tokens"
    host.sort()
    out(workload="decode", params={"batch": s.rows, "tokens": a.tokens, "layers": a.layers, "hidden": a.hidden,
                                   "vocabulary": a.vocabulary},
        **names, host_us_per_token_p50=round(host[len(host) // 2] / 1e3, 2),
        host_us_per_token_p99=round(host[(len(host) - 1) * 99 // 100] / 1e3, 2),
        total_us_per_token=round(total / 1e3, 2))
    return history


def settle():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def capture(m, states, stream, pool):
    """Captures a graph for each state; returns the graphs, and what was reserved for them."""
    before = settle()
    graphs = []
    for s in states:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            step(m, s)
        graphs.append(graph)
    return graphs, settle() - before


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--batches", default="1,8,32")
    for name, value in [("tokens", 128), ("layers", 4), ("hidden", 1024), ("head", 64), ("vocabulary", 32768),
                        ("context", 256)]:
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.set_grad_enabled(False)
    m = Model(a)
    states = [State(m, int(rows)) for rows in a.batches.split(",")]
    if a.device != "cuda":
        for s in states:
            measure(a, s, lambda: step(m, s), variant="eager")
        return
    out(workload="env", gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = [measure(a, s, lambda: step(m, s), variant="eager") for s in states]
        for s in states:
            s.reset()
    order = sorted(range(len(states)), key=lambda i: -states[i].rows)
    for kind in ["private", "shared"]:
        pool = torch.cuda.graph_pool_handle() if kind == "shared" else None
        graphs, reserved = capture(m, [states[i] for i in order], stream, pool)
        with torch.cuda.stream(stream):
            for i, graph in zip(order, graphs):
                tokens = measure(a, states[i], graph.replay, variant="captured", pool=kind)
                assert torch.equal(tokens, expected[i]), "the graph has other tokens than the eager steps"
        out(workload="decode_pool", params={"batches": [states[i].rows for i in order]}, pool=kind,
            reserved_bytes=reserved)
        del graphs, graph
    alone = []
    for s in states:
        graphs, reserved = capture(m, [s], stream, None)
        alone.append(reserved)
        del graphs
    out(workload="decode_pool", params={"batches": [s.rows for s in states]}, pool="alone", reserved_bytes=alone)


if __name__ == "__main__":
    main()
