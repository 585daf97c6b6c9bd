"""Kernels that a manifest can name."""

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def scale(x, o, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr = tl.float32):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n).to(DTYPE) * 2, mask=i < n)


@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
