"""The gated matrix product of an attention layer, and what peers.py compares it with."""

import functools

import torch
import torch.nn.functional as F

from .operators import BF16, Operator


def gated(x, weight, attn):
    return attn * torch.sigmoid(F.linear(x, weight))


class GatedMla(Operator):
    name = "gated_mla"
    floor = "read"
    copy_function, copy_variants = "read_once", 12
    exact = True
    hosts = ("gatemix", "mm")

    def __init__(self, n, k, m):
        self.n, self.k, self.t = n, k, m
        self.place = {"n": n, "k": k, "m": m}
        self.weight_bytes, self.flops = 2 * n * k, 2 * m * n * k
        self.moved = self.weight_bytes + 2 * m * (k + 2 * n)
        self.describe_tensors()

    def shapes(self):
        return {
            "x": ("normal", (self.t, self.k), BF16),
            "weight": ("weight", (self.n, self.k), BF16),
            "attn": ("normal", (self.t, self.n), BF16),
            "out": ("out", (self.t, self.n), BF16),
        }

    def facts(self):
        return self.place | {"flops": self.flops, "weight_bytes": self.weight_bytes}

    def expected_us(self):
        return max(super().expected_us(), self.flops / 7e8)

    def gatemix(self, library, i):
        d = self.at(i)
        return library.bind("gm_gated_mla", d["x"], d["weight"], d["attn"], d["out"])

    @functools.cached_property
    def compiled(self):
        torch.compiler.reset()  # or it gives up after some shapes
        return torch.compile(gated, dynamic=False)

    def rivals(self):
        yield {"peer": "mm"}, self.mm, 1
        yield {"peer": "eager"}, lambda i: self.torch(gated, i), 1
        yield {"peer": "compiled"}, lambda i: self.torch(self.compiled, i), 1

    def mm(self, i):
        """The product alone."""
        d = self.at(i)
        weight = d["weight"].T
        return lambda: torch.mm(d["x"], weight, out=d["out"])

    def torch(self, function, i):
        d = self.at(i)
        return lambda: (function(d["x"], d["weight"], d["attn"]),)

    def finished(self, peer, results):
        if peer == "mm":
            d = self.at(0)
            return (torch.sigmoid(d["out"]) * d["attn"],)
        return results

    def copied(self, d):
        return d["weight"], self.weight_bytes // 16, d["out"]

    def reference(self, d, tokens):
        z = d["x"][tokens].double() @ d["weight"].double().T
        return (z.sigmoid_().mul_(d["attn"][tokens].double()),)
