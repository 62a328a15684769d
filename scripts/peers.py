#!/usr/bin/env python3
"""Times gatemix's CUDA operators beside Triton, torch, cuBLAS and a plain copy, all in one process.

    scripts/peers.py --lib build/libgatemix.so --copy libcopy.so --json peers.json
    scripts/peers.py --lib old=a/libgatemix.so --lib new=b/libgatemix.so,pdl,GM_TUNE=41 --op rms_norm --tokens 1,128
    scripts/peers.py --lib build/libgatemix.so --copy libcopy.so --op gated_mla --gate 4096,7168 --tokens 1,16

Each time is the median over replays of a CUDA graph of many calls that go round enough sets of tensors to exceed the L2
three times; every result is compared with a float64 reference first. Needs torch and Triton.
"""

import argparse
import contextlib
import ctypes
import datetime
import functools
import json
import os
import subprocess
import sys
import time

from gpu.gatemix import FLAGS, Gatemix
from gpu.tables import print_tables

GATE = {  # (n, k) -> m
    (16384, 6144): [1, 16, 64, 128, 256, 1024, 4096, 16384],
    (8192, 6144): [1, 16, 64],
    (4096, 7168): [1, 16, 128, 1024],
    (2048, 6144): [1, 16, 64, 128, 256, 1024, 4096],
    (1024, 6144): [1, 16, 64],
    (512, 6144): [1, 16, 64],
    (256, 6144): [1, 16, 64],
}
POST = {  # H -> T
    5120: [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 32768],
    7168: [1, 8, 32, 128, 512, 2048, 8192],
    4096: [1, 8, 32, 128, 512, 2048, 8192],
}
OTHERS = {5120: [1, 128, 2048, 8192]}
SHAPES = {
    "gated_mla": GATE,
    "mhc_post_collapse_rms_norm": POST,
    "hc_collapse": OTHERS,
    "rms_norm": OTHERS,
    "hc_head": OTHERS,
    "mhc_pre_mix": OTHERS,
}
QUICK_TOKENS = [1, 32, 128, 2048]
QUICK_GATE = [(16384, 6144), (2048, 6144)]
PEERS = ["copy", "triton", "torch", "read", "mm", "eager", "compiled"]
SLOW_PEERS = ["torch", "compiled"]
L2_TIMES = 3
MAX_SETS = 2048
GRAPH_US = 3000  # what a graph takes at least, guessed
started = time.monotonic()


def note(text):
    print(f"[{time.monotonic() - started:6.1f} s] {text}", file=sys.stderr, flush=True)


def numbers(text):
    return [int(item) for item in text.split(",")]


def gate_shape(text):
    n, k = numbers(text)
    return n, k


def library_spec(text):
    """[LABEL=]PATH[,portable][,pdl][,batch_invariant][,VARIABLE=VALUE...]"""
    path, *options = text.split(",")
    label, _, path = path.rpartition("=")
    spec = {"label": label or "gatemix", "path": os.path.abspath(path), "flags": [], "environment": {}}
    for option in options:
        name, equals, value = option.partition("=")
        if equals:
            spec["environment"][name] = value
        elif name in FLAGS:
            spec["flags"].append(name)
        else:
            raise argparse.ArgumentTypeError(f"{name!r} is neither a flag ({', '.join(FLAGS)}) nor VARIABLE=VALUE")
    if not os.path.isfile(path):
        raise argparse.ArgumentTypeError(f"{path}: no such file")
    return spec


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", type=library_spec, action="append", required=True, help=library_spec.__doc__)
    parser.add_argument("--copy", metavar="PATH", help="libcopy.so, built from benches/cuda/copy.cu")
    parser.add_argument("--json", metavar="PATH", help="where to write everything measured")
    parser.add_argument("--op", action="append", choices=SHAPES, help="repeat for several; default: all")
    parser.add_argument("--hidden", type=numbers, help="such as 5120,7168; not of gated_mla")
    parser.add_argument("--gate", type=gate_shape, action="append", metavar="N,K", help="of gated_mla; several times")
    parser.add_argument("--tokens", type=numbers, help="such as 1,128; m of gated_mla")
    parser.add_argument("--in-place", action="store_true", help="mhc_post_collapse_rms_norm over its residual")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {','.join(PEERS)}; empty for none")
    parser.add_argument("--quick", action="store_true", help="few shapes, no torch, nothing compiled, fewer replays")
    parser.add_argument("--device", type=int, default=0)
    args = parser.parse_args(argv)
    args.peers = [peer for peer in args.peers.split(",") if peer]
    if args.quick:
        args.hidden, args.tokens = args.hidden or [5120], args.tokens or QUICK_TOKENS
        args.gate = args.gate or QUICK_GATE
        args.peers = [peer for peer in args.peers if peer not in SLOW_PEERS]
    labels = [spec["label"] for spec in args.lib]
    if len(set(labels)) < len(labels):
        parser.error(f"--lib: labels must differ: {', '.join(labels)}")
    if set(args.peers) - set(PEERS):
        parser.error(f"--peers: choose from {', '.join(PEERS)}")
    if {"copy", "read"} & set(args.peers) and not args.copy:
        parser.error("--copy is needed, or --peers without copy and read")
    return args


def shapes(args):
    """(op, (n, k) or hidden, tokens) in the order of the report."""
    for op in args.op or SHAPES:
        if args.in_place and op != "mhc_post_collapse_rms_norm":
            continue
        for place in (args.gate if op == "gated_mla" else args.hidden) or SHAPES[op]:
            fallback = GATE[16384, 6144] if op == "gated_mla" else POST[7168]
            for tokens in args.tokens or SHAPES[op].get(place, fallback):
                yield op, place, tokens


@contextlib.contextmanager
def environment(variables):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Run:
    def __init__(self, args):
        import torch
        from gpu import gate, operators, timing

        self.args, self.torch, self.timing = args, torch, timing
        self.operators = {op.name: op for op in (gate.GatedMla, *operators.MHC)}
        torch.cuda.set_device(args.device)
        torch.manual_seed(1)
        self.stream = torch.cuda.Stream()
        self.address = self.stream.cuda_stream
        self.l2 = torch.cuda.get_device_properties(args.device).L2_cache_size
        self.copy = ctypes.CDLL(os.path.abspath(args.copy)) if args.copy else None
        self.libraries = []
        for spec in args.lib:
            with environment(spec["environment"]):
                flags = sum(FLAGS[flag] for flag in spec["flags"])
                library = Gatemix(spec["path"], self.address, flags, args.device)
            self.libraries.append((spec, library))
        self.budget = 100 if args.quick else 300  # milliseconds of replays for a shape

    def meta(self):
        torch = self.torch
        query = [
            "nvidia-smi",
            f"--id={self.args.device}",
            "--query-gpu=driver_version,clocks.max.sm",
            "--format=csv,noheader",
        ]
        try:
            driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            driver = "unknown, unknown"
        import triton

        return {
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "gpu": torch.cuda.get_device_name(self.args.device),
            "driver": driver.split(", ")[0],
            "max_sm_clock": driver.split(", ")[-1],
            "l2_bytes": self.l2,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "libraries": [
                {k: spec[k] for k in ("label", "flags", "environment")} | {"build": library.build_info()}
                for spec, library in self.libraries
            ],
        }

    def empty_us(self):
        if not self.copy:
            return None
        stream, calls = ctypes.c_void_p(self.address), 1000
        self.copy.copy_nothing(stream)  # loads it, which a capture would refuse
        graph = self.timing.capture([lambda: self.copy.copy_nothing(stream)] * calls, self.stream)
        return self.timing.measure([graph], [calls], self.budget, self.stream)[0][0][0]

    def variants(self, name, place, tokens):
        op = self.operators[name]
        if name == "gated_mla":
            return [op(*place, tokens)]
        if name == "mhc_post_collapse_rms_norm":
            return [op(place, tokens, self.args.in_place)]
        if name == "hc_head":
            return [op(place, tokens, rounded) for rounded in (True, False)]
        return [op(place, tokens)]

    def candidates(self, op, calls):
        """(what goes into the report, maker of the call on set i, calls a graph, (specification, library) if ours)"""
        for spec, library in self.libraries:
            entry = {"peer": "gatemix", "label": spec["label"]}
            yield entry, functools.partial(op.gatemix, library), calls, (spec, library)
        for entry, make, fraction in op.rivals():
            if entry["peer"] in self.args.peers:
                yield entry, make, max(2, int(calls * fraction)), None

    def prepare(self, op, checker, entry, make, calls, library):
        """Checks one candidate and captures its graph; None if it fails, which entry then says."""
        spec = library[0] if library else {"environment": {}}
        try:
            with environment(spec["environment"]):
                comparison = checker.check(entry["peer"], make(0), self.stream)
                entry |= {"ulps": comparison.ulps, "differing": comparison.differing}
                if op.exact:
                    entry |= {"max_error": comparison.max_error, "mean_error": comparison.mean_error}
                if library:
                    entry["kernel"] = library[1].last_kernel()
                if not comparison.error <= op.tolerance:
                    raise RuntimeError(f"wrong result: relative error {comparison.error:.3g}, ulps {comparison.ulps}")
                on_set = [make(i) for i in range(calls)]
                if entry["peer"] in op.hosts:
                    entry["host_us"] = round(self.timing.host_us(on_set, op.expected_us(), self.stream), 3)
                return self.timing.capture(on_set, self.stream)
        except Exception as error:  # a peer that fails must not cost the others their time on the GPU
            entry["error"] = f"{type(error).__name__}: {error}"[:300]
            note(f"{op.name} {op.variant} {op.facts()}: {entry}")
            return None

    def copies(self, op, calls):
        """(what goes into the report, graph) of the three copies that are fastest at first sight."""
        on_set = [op.copy(self.copy, self.address, i) for i in range(calls)]
        graphs = []
        for variant in range(op.copy_variants):
            on_set[0](variant)
            graphs.append(self.timing.capture([functools.partial(call, variant) for call in on_set], self.stream))
        self.timing.replay(graphs, 1, self.stream)
        times = self.timing.replay(graphs, 2, self.stream)
        best = sorted(range(len(graphs)), key=lambda variant: min(times[variant]))[:3]
        return [({"peer": op.floor, "variant": variant}, graphs[variant]) for variant in best]

    def shape(self, op):
        sets = min(max(L2_TIMES * self.l2 // op.set_bytes + 1, 2), MAX_SETS)
        calls = max(sets, int(GRAPH_US / op.expected_us()))
        calls = -(-calls // sets) * sets
        op.allocate(sets, "cuda")
        checker = self.timing.Checker(op)
        measured, failed = [], []  # (entry, graph, calls) and entries
        for entry, make, count, library in self.candidates(op, calls):
            graph = self.prepare(op, checker, entry, make, count, library)
            if graph is None:
                failed.append(entry)
            else:
                measured.append((entry, graph, count))
        del checker
        if op.floor in self.args.peers:
            measured += [(entry, graph, calls) for entry, graph in self.copies(op, calls)]
        graphs, counts = [graph for _, graph, _ in measured], [count for _, _, count in measured]
        times, rounds = self.timing.measure(graphs, counts, self.budget, self.stream)
        for (entry, _, _), (median, least) in zip(measured, times, strict=True):
            entry |= {"us": round(median, 3), "min_us": round(least, 3)}
        row = {"op": op.name, "variant": op.variant, "in_place": op.in_place} | op.facts()
        row |= {"moved_bytes": op.moved, "sets": sets, "set_bytes": op.set_bytes, "calls": calls, "replays": rounds}
        return row | {"results": [entry for entry, _, _ in measured] + failed}


def main():
    args = arguments()
    run = Run(args)
    report = {"meta": run.meta(), "empty_us": None, "rows": []}
    labels = [spec["label"] for spec in args.lib]
    try:
        report["empty_us"] = run.empty_us()
        for op, place, tokens in shapes(args):
            for variant in run.variants(op, place, tokens):
                report["rows"].append(run.shape(variant))
            note(f"{op} {place}, {tokens} tokens")
    finally:
        if args.json:
            with open(args.json, "w") as file:
                json.dump(report, file, indent=1)
                file.write("\n")
        print(json.dumps(report["meta"], indent=1))
        print(f"empty kernel: {report['empty_us'] or float('nan'):.2f} us")
        print_tables(report["rows"], labels)
    failures = [r for row in report["rows"] for r in row["results"] if r["peer"] == "gatemix" and "error" in r]
    sys.exit(f"{len(failures)} results of gatemix failed" if failures else 0)


if __name__ == "__main__":
    main()
