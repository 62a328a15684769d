"""The operators in Triton, written from the formulas of docs/semantics.md; n = 4 streams, contiguous tensors."""

import triton
import triton.language as tl


@triton.jit
def new_stream(comb, post, stream: tl.constexpr, x, r0, r1, r2, r3):
    mixed = tl.load(comb + stream) * r0
    mixed = tl.fma(tl.load(post + stream) + tl.zeros_like(x), x, mixed)
    mixed = tl.fma(tl.load(comb + 4 + stream) + tl.zeros_like(x), r1, mixed)
    mixed = tl.fma(tl.load(comb + 8 + stream) + tl.zeros_like(x), r2, mixed)
    mixed = tl.fma(tl.load(comb + 12 + stream) + tl.zeros_like(x), r3, mixed)
    return mixed.to(tl.bfloat16)


@triton.jit
def weighted_sum(weights, r0, r1, r2, r3):
    v = tl.load(weights) * r0
    v = tl.fma(tl.load(weights + 1) + tl.zeros_like(r0), r1, v)
    v = tl.fma(tl.load(weights + 2) + tl.zeros_like(r0), r2, v)
    return tl.fma(tl.load(weights + 3) + tl.zeros_like(r0), r3, v)


@triton.jit
def post_collapse_rms_norm(
    residual, x, post, comb, pre, weight, eps, residual_out, out, H: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    inside = h < H
    row = residual + token * 4 * H + h
    r0 = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    r1 = tl.load(row + H, mask=inside, other=0.0).to(tl.float32)
    r2 = tl.load(row + 2 * H, mask=inside, other=0.0).to(tl.float32)
    r3 = tl.load(row + 3 * H, mask=inside, other=0.0).to(tl.float32)
    sublayer = tl.load(x + token * H + h, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + h, mask=inside, other=0.0).to(tl.float32)
    n0 = new_stream(comb + token * 16, post + token * 4, 0, sublayer, r0, r1, r2, r3)
    n1 = new_stream(comb + token * 16, post + token * 4, 1, sublayer, r0, r1, r2, r3)
    n2 = new_stream(comb + token * 16, post + token * 4, 2, sublayer, r0, r1, r2, r3)
    n3 = new_stream(comb + token * 16, post + token * 4, 3, sublayer, r0, r1, r2, r3)
    target = residual_out + token * 4 * H + h
    tl.store(target, n0, mask=inside)
    tl.store(target + H, n1, mask=inside)
    tl.store(target + 2 * H, n2, mask=inside)
    tl.store(target + 3 * H, n3, mask=inside)
    v = weighted_sum(pre + token * 4, n0.to(tl.float32), n1.to(tl.float32), n2.to(tl.float32), n3.to(tl.float32))
    v = v.to(tl.bfloat16).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, 0) * (1.0 / H) + eps)
    tl.store(out + token * H + h, ((v * r) * w).to(tl.bfloat16), mask=inside)


# Launched with enable_fp_fusion=False: product and sum are rounded separately.
@triton.jit
def collapse(residual, pre, out, H: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = h < H
    sum = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(4):
        r = tl.load(residual + (token * 4 + i) * H + h, mask=inside, other=0.0).to(tl.float32)
        sum += tl.load(pre + token * 4 + i) * r
    tl.store(out + token * H + h, sum.to(tl.bfloat16), mask=inside)


@triton.jit
def rms_norm(x, eps, out, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < D
    v = tl.load(x + row * D + d, mask=inside, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, 0) / D + eps)
    tl.store(out + row * D + d, (v * r).to(tl.bfloat16), mask=inside)


@triton.jit
def projected(fn, x0, x1, x2, x3, h, inside, stream: tl.constexpr, H: tl.constexpr):
    row = fn + stream * 4 * H + h
    sum = tl.load(row, mask=inside, other=0.0) * x0
    sum += tl.load(row + H, mask=inside, other=0.0) * x1
    sum += tl.load(row + 2 * H, mask=inside, other=0.0) * x2
    sum += tl.load(row + 3 * H, mask=inside, other=0.0) * x3
    return tl.sum(sum, 0)


@triton.jit
def normalised(v, r, ROUNDED: tl.constexpr):
    return (v * r).to(tl.bfloat16).to(tl.float32) if ROUNDED else v


@triton.jit
def head(residual, fn, scale, base, rms_eps, hc_eps, out, ROUNDED: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    inside = h < H
    row = residual + token * 4 * H + h
    r0 = tl.load(row, mask=inside, other=0.0).to(tl.float32)
    r1 = tl.load(row + H, mask=inside, other=0.0).to(tl.float32)
    r2 = tl.load(row + 2 * H, mask=inside, other=0.0).to(tl.float32)
    r3 = tl.load(row + 3 * H, mask=inside, other=0.0).to(tl.float32)
    squares = r0 * r0 + r1 * r1 + r2 * r2 + r3 * r3
    r = tl.rsqrt(tl.sum(squares, 0) / (4 * H) + rms_eps)
    x0 = normalised(r0, r, ROUNDED)
    x1 = normalised(r1, r, ROUNDED)
    x2 = normalised(r2, r, ROUNDED)
    x3 = normalised(r3, r, ROUNDED)
    factor = 1.0 if ROUNDED else r
    s = tl.load(scale)
    p0 = tl.sigmoid(projected(fn, x0, x1, x2, x3, h, inside, 0, H) * factor * s + tl.load(base)) + hc_eps
    p1 = tl.sigmoid(projected(fn, x0, x1, x2, x3, h, inside, 1, H) * factor * s + tl.load(base + 1)) + hc_eps
    p2 = tl.sigmoid(projected(fn, x0, x1, x2, x3, h, inside, 2, H) * factor * s + tl.load(base + 2)) + hc_eps
    p3 = tl.sigmoid(projected(fn, x0, x1, x2, x3, h, inside, 3, H) * factor * s + tl.load(base + 3)) + hc_eps
    v = tl.fma(p1 + tl.zeros_like(r1), r1, p0 * r0)
    v = tl.fma(p2 + tl.zeros_like(r2), r2, v)
    v = tl.fma(p3 + tl.zeros_like(r3), r3, v)
    tl.store(out + token * H + h, v.to(tl.bfloat16), mask=inside)


# Launched with enable_fp_fusion=False.
@triton.jit
def pre_mix(
    gemm_out, sqrsum, scale, base, inv_hidden, rms_eps, hc_pre_eps, out, T, S: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    j = tl.arange(0, 4)
    inside = token < T
    mix = tl.zeros([BLOCK, 4], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(S):
        row = (s * T + token) * COLUMNS
        mix += tl.load(gemm_out + row[:, None] + j[None, :], mask=inside[:, None], other=0.0)
        squares += tl.load(sqrsum + s * T + token, mask=inside, other=0.0)
    r = tl.rsqrt(squares * inv_hidden + rms_eps)
    gate = tl.sigmoid(mix * r[:, None] * tl.load(scale) + tl.load(base + j)[None, :]) + hc_pre_eps
    tl.store(out + token[:, None] * 4 + j[None, :], gate, mask=inside[:, None])
