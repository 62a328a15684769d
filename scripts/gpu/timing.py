"""Graphs of many calls, replayed in turns, and the comparison of results."""

import statistics
import time

import torch

HOST_US = 100_000  # about how long the GPU works on the calls that are timed on the CPU
BURST = 100  # of them at a time: the queue must not fill
CHUNK = 2048  # tokens whose float64 reference is in memory at once


def ordered(tensor):
    """Floats as integers whose difference is the distance in ulps."""
    bits = tensor.contiguous().view(torch.int16 if tensor.dtype == torch.bfloat16 else torch.int32)
    bits = bits.to(torch.int64)
    low = 0x7FFF if tensor.dtype == torch.bfloat16 else 0x7FFFFFFF
    return torch.where(bits < 0, -(bits & low), bits)


class Comparison:
    """Largest distance in ulps and number of differing elements, for each output; error: largest, see Operator.

    max_error, mean_error: absolute, against what is not rounded if the operator's reference isn't.
    """

    def __init__(self, outputs):
        self.ulps, self.differing, self.error = [0] * outputs, [0] * outputs, 0.0
        self.max_error, self.total_error, self.elements = 0.0, 0.0, 0

    @property
    def mean_error(self):
        return self.total_error / self.elements

    def add(self, results, expected):
        for k, (result, wanted) in enumerate(zip(results, expected, strict=True)):
            if not torch.isfinite(result).all():
                self.error = float("inf")
                return
            distance = (ordered(result) - ordered(wanted.to(result.dtype))).abs()
            self.ulps[k] = max(self.ulps[k], int(distance.max()))
            self.differing[k] += int((distance != 0).sum())
            wanted = wanted.double()
            error = (result.double() - wanted).abs()
            self.max_error = max(self.max_error, float(error.max()))
            self.total_error += float(error.sum())
            self.elements += error.numel()
            scale = wanted.abs() + wanted.square().mean().sqrt()
            self.error = max(self.error, float((error / scale).max()))


class Checker:
    """Compares what calls leave in set 0 with the reference."""

    def __init__(self, operator):
        self.operator = operator
        self.inputs = operator.at(0)
        self.saved = None
        if operator.in_place:
            self.saved = self.inputs["residual"].clone()
            self.inputs = self.inputs | {"residual": self.saved}
        self.chunks = [slice(first, min(first + CHUNK, operator.t)) for first in range(0, operator.t, CHUNK)]
        self.expected = [operator.reference(self.inputs, tokens) for tokens in self.chunks]

    def check(self, peer, call, stream):
        op = self.operator
        targets = [op.at(0)[name] for name in op.outputs]
        for target in targets:
            target.fill_(float("nan"))
        if self.saved is not None:
            op.at(0)["residual"].copy_(self.saved)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            results = call()
        torch.cuda.synchronize()
        if not isinstance(results, (list, tuple)):  # written in place; what a Triton launch returns is its kernel
            results = targets
        results = op.finished(peer, results)
        comparison = Comparison(len(results))
        for tokens, expected in zip(self.chunks, self.expected, strict=True):
            comparison.add([result[tokens] for result in results], expected)
        return comparison


def capture(calls, stream):
    """Not torch.cuda.graph: it collects garbage and empties the allocator each time."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            for call in calls:
                call()
        except BaseException:
            try:
                graph.capture_end()
            except RuntimeError:
                pass
            raise
        graph.capture_end()
    return graph


def replay(graphs, rounds, stream):
    """Milliseconds of each replay of each graph, in turns."""
    events = [[] for _ in graphs]
    with torch.cuda.stream(stream):
        for _ in range(rounds):
            for graph, pairs in zip(graphs, events, strict=True):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record(stream)
                graph.replay()
                end.record(stream)
                pairs.append((begin, end))
    torch.cuda.synchronize()
    return [[begin.elapsed_time(end) for begin, end in pairs] for pairs in events]


def measure(graphs, calls, budget_ms, stream):
    """(median, minimum) of the microseconds a call, for each graph. The first replay is not counted."""
    first = replay(graphs, 1, stream)
    rounds = int(budget_ms / max(sum(times[0] for times in first), 1e-3))
    rounds = min(max(rounds, 5), 25)
    times = replay(graphs, rounds, stream)
    return [(1e3 * statistics.median(t) / n, 1e3 * min(t) / n) for t, n in zip(times, calls, strict=True)], rounds


def host_us(calls, us, stream):
    """Median over bursts of the microseconds that the CPU spends on a call, which takes the GPU `us`; no graph."""
    bursts = []
    left = min(max(int(HOST_US / us), 20), 2000)
    with torch.cuda.stream(stream):
        while left > 0:
            burst = [calls[i % len(calls)] for i in range(min(left, BURST))]
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for call in burst:
                call()
            bursts.append((time.perf_counter() - begin) * 1e6 / len(burst))
            left -= len(burst)
    torch.cuda.synchronize()
    return statistics.median(bursts)
