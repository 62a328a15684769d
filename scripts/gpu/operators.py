"""The operators that peers.py measures: their data, each peer's call, and what the results must be.

A shape has many sets of tensors, so that a call finds none of its own in the cache.
"""

import ctypes
import functools

import torch
import torch.nn.functional as F
import triton

from . import gatemix, kernels

BF16, F32 = torch.bfloat16, torch.float32
N, SLICES, COLUMNS, EPS = 4, 8, 24, 1e-6


def f32(value):
    """A float64 rounded to fp32, still as float64."""
    return value.float().double()


def fill(kind, shape, dtype, device):
    if kind == "normal":
        return torch.randn(shape, dtype=dtype, device=device)
    if kind == "weight":  # of a projection of the whole row: results of size 1
        return torch.randn(shape, dtype=dtype, device=device) * shape[-1] ** -0.5
    if kind == "gate":
        return torch.rand(shape, dtype=dtype, device=device)
    if kind == "comb":  # [source, target]: run in place again and again, streams must not grow
        return 0.9 * torch.randn(shape, dtype=dtype, device=device).softmax(-2)
    if kind == "squares":
        return torch.rand(shape, dtype=dtype, device=device) * 5000 + 100
    return torch.full(shape, float("nan"), dtype=dtype, device=device)  # "out"


class Operator:
    """tensors: name -> (kind, shape, dtype). moved: bytes that a call must read and write, coefficients not counted."""

    in_place = False
    outputs = ("out",)
    warps = (4, 8, 16)
    floor = "copy"
    exact = False  # the reference is not rounded, and errors are measured against it
    hosts = ()  # peers whose time on the CPU is measured
    copy_function = "copy_token_rows"
    copy_variants = 16
    tolerance = 2**-5  # relative to |expected| + its root mean square; ulps are reported besides
    variant = ""

    def __init__(self, hidden, tokens):
        self.h, self.t = hidden, tokens
        self.describe_tensors()

    def describe_tensors(self):
        self.tensors = self.shapes()
        self.set_bytes = sum(torch.Size(shape).numel() * dtype.itemsize for _, shape, dtype in self.tensors.values())

    def facts(self):
        """What a row of the report says of its shape."""
        return {"hidden": self.h, "tokens": self.t}

    def expected_us(self):
        return 1.5 + self.moved / 4e6

    def rivals(self):
        """(what goes into the report, maker of the call on set i, fraction of the calls that its graph needs)"""
        for warps in self.warps:
            yield {"peer": "triton", "warps": warps}, functools.partial(self.triton, warps), 1
        if not self.in_place:
            yield {"peer": "torch"}, self.torch, 1 / 8

    def finished(self, peer, results):
        """What to compare with the reference, from what a peer left."""
        return results

    def allocate(self, sets, device):
        data = {name: fill(kind, (sets, *shape), dtype, device) for name, (kind, shape, dtype) in self.tensors.items()}
        self.sets = [{name: tensor[i] for name, tensor in data.items()} for i in range(sets)]

    def at(self, i):
        return self.sets[i % len(self.sets)]

    def block(self, width):
        return triton.next_power_of_2(width)

    def copy(self, library, stream, i):
        """A call that takes the variant."""
        d, function = self.at(i), getattr(library, self.copy_function)
        pointers = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in self.copied(d)]
        stream = ctypes.c_void_p(stream)

        def call(variant):
            error = function(*pointers, variant, stream)
            if error != 0:
                raise RuntimeError(f"{self.copy_function}, variant {variant}: CUDA error {error}")

        return call


class PostCollapseRmsNorm(Operator):
    name = "mhc_post_collapse_rms_norm"
    outputs = ("residual_out", "layer_input")

    def __init__(self, hidden, tokens, in_place=False):
        self.in_place = in_place
        super().__init__(hidden, tokens)
        self.moved = 20 * hidden * tokens

    def shapes(self):
        h, t = self.h, self.t
        shapes = {
            "residual": ("normal", (t, N, h), BF16),
            "x": ("normal", (t, h), BF16),
            "post": ("gate", (t, N), F32),
            "comb": ("comb", (t, N, N), F32),
            "pre": ("gate", (t, N), F32),
            "weight": ("normal", (h,), BF16),
            "residual_out": ("out", (t, N, h), BF16),
            "layer_input": ("out", (t, h), BF16),
        }
        if self.in_place:
            del shapes["residual_out"]
        return shapes

    def allocate(self, sets, device):
        super().allocate(sets, device)
        for tensors in self.sets:
            tensors.setdefault("residual_out", tensors["residual"])

    def gatemix(self, library, i):
        d = self.at(i)
        return library.bind(
            "gm_mhc_post_collapse_rms_norm", d["residual"], d["x"], d["post"], d["comb"], d["pre"], d["weight"], EPS,
            d["residual_out"], d["layer_input"],
        )  # fmt: skip

    def triton(self, warps, i):
        d = self.at(i)
        launch = kernels.post_collapse_rms_norm[(self.t,)]
        return lambda: launch(
            d["residual"], d["x"], d["post"], d["comb"], d["pre"], d["weight"], EPS, d["residual_out"],
            d["layer_input"], H=self.h, BLOCK=self.block(self.h), num_warps=warps,
        )  # fmt: skip

    def torch(self, i):
        d = self.at(i)

        def call():
            injected = d["post"][:, :, None] * d["x"].float()[:, None]
            new = torch.baddbmm(injected, d["comb"].mT, d["residual"].float()).to(BF16)
            v = torch.bmm(d["pre"][:, None], new.float())[:, 0].to(BF16)
            return new, F.rms_norm(v, (self.h,), d["weight"], EPS)

        return call

    def copied(self, d):
        return 5, 5, d["residual"], d["x"], d["residual_out"], d["layer_input"], self.t, self.h

    def reference(self, d, tokens):
        r, x = d["residual"][tokens].double(), d["x"][tokens].double()[:, None]
        post, comb, pre = (d[name][tokens].double() for name in ("post", "comb", "pre"))
        new = f32(comb[:, 0, :, None] * r[:, 0:1])
        new = f32(post[:, :, None] * x + new)
        for source in range(1, N):
            new = f32(comb[:, source, :, None] * r[:, source : source + 1] + new)
        new = new.to(F32).to(BF16)
        v = f32(pre[:, 0:1] * new[:, 0].double())
        for stream in range(1, N):
            v = f32(pre[:, stream : stream + 1] * new[:, stream].double() + v)
        v = v.to(F32).to(BF16).double()
        y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) * d["weight"].double()
        return new, y.to(BF16)


class HcCollapse(Operator):
    name = "hc_collapse"

    def __init__(self, hidden, tokens):
        super().__init__(hidden, tokens)
        self.moved = 10 * hidden * tokens

    def shapes(self):
        h, t = self.h, self.t
        return {
            "residual": ("normal", (t, N, h), BF16),
            "pre": ("gate", (t, N), F32),
            "out": ("out", (t, h), BF16),
        }

    def gatemix(self, library, i):
        d = self.at(i)
        return library.bind("gm_hc_collapse", d["residual"], d["pre"], d["out"])

    def triton(self, warps, i):
        d, block = self.at(i), 256 * warps  # 8 elements a thread
        launch = kernels.collapse[(self.t, triton.cdiv(self.h, block))]
        return lambda: launch(
            d["residual"], d["pre"], d["out"], H=self.h, BLOCK=block, num_warps=warps, enable_fp_fusion=False
        )

    def torch(self, i):
        d = self.at(i)
        return lambda: ((d["pre"][:, :, None] * d["residual"].float()).sum(1).to(BF16),)

    def copied(self, d):
        return 4, 1, d["residual"], None, None, d["out"], self.t, self.h

    def reference(self, d, tokens):
        r, pre = d["residual"][tokens].double(), d["pre"][tokens].double()
        total = torch.zeros_like(r[:, 0])
        for stream in range(N):
            total = f32(total + f32(pre[:, stream : stream + 1] * r[:, stream]))
        return (total.to(F32).to(BF16),)


class RmsNorm(Operator):
    name = "rms_norm"  # over all streams, without a weight

    def __init__(self, hidden, tokens):
        super().__init__(hidden, tokens)
        self.moved = 16 * hidden * tokens

    def shapes(self):
        h, t = self.h, self.t
        return {"x": ("normal", (t, N * h), BF16), "out": ("out", (t, N * h), BF16)}

    def gatemix(self, library, i):
        d = self.at(i)
        return library.bind("gm_rms_norm", d["x"], None, EPS, d["out"])

    def triton(self, warps, i):
        d, width = self.at(i), N * self.h
        launch = kernels.rms_norm[(self.t,)]
        return lambda: launch(d["x"], EPS, d["out"], D=width, BLOCK=self.block(width), num_warps=warps)

    def torch(self, i):
        d = self.at(i)
        return lambda: (F.rms_norm(d["x"], (N * self.h,), None, EPS),)

    def copied(self, d):
        return 4, 4, d["x"], None, d["out"], None, self.t, self.h

    def reference(self, d, tokens):
        x = d["x"][tokens].double()
        return ((x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)).to(BF16),)


class HcHead(Operator):
    name = "hc_head"

    def __init__(self, hidden, tokens, rounded=True):
        super().__init__(hidden, tokens)
        self.moved = 10 * hidden * tokens
        self.rounded, self.variant = rounded, "rounded" if rounded else "fp32"

    def shapes(self):
        h, t = self.h, self.t
        return {
            "residual": ("normal", (t, N, h), BF16),
            "fn": ("weight", (N, N * h), F32),
            "scale": ("gate", (4,), F32),
            "base": ("normal", (N,), F32),
            "out": ("out", (t, h), BF16),
        }

    def gatemix(self, library, i):
        d, mode = self.at(i), gatemix.HEAD_ROUNDED if self.rounded else gatemix.HEAD_FP32
        return library.bind("gm_hc_head", d["residual"], d["fn"], d["scale"][:1], d["base"], EPS, EPS, mode, d["out"])

    def triton(self, warps, i):
        d = self.at(i)
        launch = kernels.head[(self.t,)]
        return lambda: launch(
            d["residual"], d["fn"], d["scale"], d["base"], EPS, EPS, d["out"], ROUNDED=self.rounded, H=self.h,
            BLOCK=self.block(self.h), num_warps=warps,
        )  # fmt: skip

    def torch(self, i):
        d = self.at(i)

        def call():
            flat, r = d["residual"].flatten(1), 1.0
            if self.rounded:
                flat = F.rms_norm(flat, (N * self.h,), None, EPS)
            else:
                r = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + EPS)
            mix = F.linear(flat.float(), d["fn"]) * r
            pre = torch.sigmoid(mix * d["scale"][:1] + d["base"]) + EPS
            return ((pre[:, :, None] * d["residual"].float()).sum(1).to(BF16),)

        return call

    def copied(self, d):
        return 4, 1, d["residual"], None, None, d["out"], self.t, self.h

    def reference(self, d, tokens):
        r = d["residual"][tokens].double()
        flat = r.flatten(1)
        scale = torch.rsqrt(flat.square().mean(-1, keepdim=True) + EPS)
        x = (flat * scale).to(BF16).double() if self.rounded else flat * scale
        pre = torch.sigmoid(x @ d["fn"].double().T * d["scale"][:1].double() + d["base"].double()) + EPS
        return ((pre[:, :, None] * r).sum(1).to(BF16),)


class MhcPreMix(Operator):
    name = "mhc_pre_mix"
    warps = (1, 4, 8, 16)
    tolerance = 2**-16
    copy_function = "copy_pre_mix"
    copy_variants = 4

    def __init__(self, hidden, tokens):
        super().__init__(hidden, tokens)
        self.moved = tokens * 4 * (SLICES * (N + 1) + N)

    def shapes(self):
        h, t = self.h, self.t
        return {
            "gemm_out": ("normal", (SLICES, t, COLUMNS), F32),
            "sqrsum": ("squares", (SLICES, t), F32),
            "scale": ("gate", (4,), F32),
            "base": ("normal", (COLUMNS,), F32),
            "out": ("out", (t, N), F32),
        }

    def gatemix(self, library, i):
        d = self.at(i)
        return library.bind(
            "gm_mhc_pre_mix", d["gemm_out"], d["sqrsum"], d["scale"], d["base"], N * self.h, EPS, EPS, d["out"]
        )

    def triton(self, warps, i):
        d, block = self.at(i), 8 * warps  # one result a thread
        launch = kernels.pre_mix[(triton.cdiv(self.t, block),)]
        return lambda: launch(
            d["gemm_out"], d["sqrsum"], d["scale"], d["base"], 1.0 / (N * self.h), EPS, EPS, d["out"], self.t,
            S=SLICES, COLUMNS=COLUMNS, BLOCK=block, num_warps=warps, enable_fp_fusion=False,
        )  # fmt: skip

    def torch(self, i):
        d = self.at(i)

        def call():
            r = torch.rsqrt(d["sqrsum"].sum(0) * (1.0 / (N * self.h)) + EPS)
            mix = d["gemm_out"][:, :, :N].sum(0)
            return (torch.sigmoid(mix * r[:, None] * d["scale"][:1] + d["base"][:N]) + EPS,)

        return call

    def copied(self, d):
        return d["gemm_out"], d["sqrsum"], d["out"], SLICES, self.t, COLUMNS

    def reference(self, d, tokens):
        r = torch.rsqrt(d["sqrsum"][:, tokens].double().sum(0) / (N * self.h) + EPS)
        mix = d["gemm_out"][:, tokens, :N].double().sum(0)
        gate = torch.sigmoid(mix * r[:, None] * d["scale"][:1].double() + d["base"][:N].double())
        return ((gate + EPS).float(),)


MHC = (PostCollapseRmsNorm, HcCollapse, RmsNorm, HcHead, MhcPreMix)
