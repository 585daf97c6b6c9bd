"""Weight-only quantised matmuls: int8, fp8 or int4 weights become bf16 in the K loop.

Scales are those of rows, on the result, or of 128 weights of a row, on the weights.

The product is computed transposed, out^T = W^T x^T: the weights are the left operand, which the
tensor core takes from registers, so that they are widened where they are and never written back.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def weight_only(w: tl.Tensor, x: tl.Tensor, scales: tl.Tensor, out: tl.Tensor,
                BN: tl.constexpr = tl.auto, BM: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """out[M, N] = x[M, K] @ (scales[N] * w[N, K])^T; w: int8 or fp8, x and out: bf16."""
    n, m = tl.program_id(0) * BN, tl.program_id(1) * BM
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, w.shape[1], BK):
        wide = w.load((n, k), (BN, BK)).to(x.dtype)
        acc = tl.dot(wide, x.load((m, k), (BM, BK)).T, acc)
    acc = acc * scales.load((n,), (BN,))[:, None]
    out.store((m, n), acc.T)


@tiledsl.jit
def weight_only_int4(w: tl.Tensor, x: tl.Tensor, scales: tl.Tensor, out: tl.Tensor,
                     BN: tl.constexpr = tl.auto, BM: tl.constexpr = tl.auto):
    """As weight_only with two weights in a byte, w: [N, K / 2] int8.

    Of 256 weights of a row, byte j holds number j in its lower half and number j + 128 in its upper
    half, so that both halves are tiles of their own.
    """
    n, m = tl.program_id(0) * BN, tl.program_id(1) * BM
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, x.shape[1], 256):
        both = w.load((n, k // 2), (BN, 128)).to(tl.int32)
        low, high = ((both << 28) >> 28).to(x.dtype), (both >> 4).to(x.dtype)
        acc = tl.dot(low, x.load((m, k), (BM, 128)).T, acc)
        acc = tl.dot(high, x.load((m, k + 128), (BM, 128)).T, acc)
    acc = acc * scales.load((n,), (BN,))[:, None]
    out.store((m, n), acc.T)


@tiledsl.jit
def weight_only_groups(w: tl.Tensor, x: tl.Tensor, scales: tl.Tensor, out: tl.Tensor,
                       BN: tl.constexpr = tl.auto, BM: tl.constexpr = tl.auto):
    """As weight_only_int4 with a scale for each 128 weights of a row, scales: [K / 128, N]."""
    n, m = tl.program_id(0) * BN, tl.program_id(1) * BM
    acc = tl.zeros((BN, BM), tl.float32)
    for k in range(0, x.shape[1], 256):
        both = w.load((n, k // 2), (BN, 128)).to(tl.int32)
        group = k // 128
        low = ((both << 28) >> 28).to(scales.dtype) * scales.load((group, n), (BN,))[:, None]
        high = (both >> 4).to(scales.dtype) * scales.load((group + 1, n), (BN,))[:, None]
        acc = tl.dot(low.to(x.dtype), x.load((m, k), (BM, 128)).T, acc)
        acc = tl.dot(high.to(x.dtype), x.load((m, k + 128), (BM, 128)).T, acc)
    out.store((m, n), acc.T)
# fmt: on


KERNELS = {
    "int8": weight_only, "fp8": weight_only, "int4": weight_only_int4, "groups": weight_only_groups,
}  # fmt: skip
KINDS = tuple(KERNELS)


def quantised(w: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """w[N, K] as int8, fp8 or packed int4, and the scale of each row, or of 128 weights of each."""
    top = {"int8": 127.0, "fp8": 448.0}.get(kind, 7.0)
    n, k = w.shape
    if kind == "groups":
        parts = torch.nn.functional.pad(w, (0, -k % 256)).view(n, -1, 128)
        group_scales = (parts.abs().amax(2).clamp(min=1e-12) / top).to(torch.bfloat16)
        small = (parts / group_scales[:, :, None]).reshape(n, -1)[:, :k]
        return packed(small.round().to(torch.int8)), group_scales.t().contiguous()
    scale = w.abs().amax(1).clamp(min=1e-12) / top
    small = w / scale[:, None]
    if kind == "fp8":
        return small.to(torch.float8_e4m3fn), scale
    whole = small.round().to(torch.int8)
    return (whole, scale) if kind == "int8" else (packed(whole), scale)


def packed(whole: torch.Tensor) -> torch.Tensor:
    """Numbers of four bits [N, K], two in a byte."""
    n, k = whole.shape
    halves = torch.nn.functional.pad(whole, (0, -k % 256)).view(n, -1, 2, 128)
    return ((halves[:, :, 0] & 15) | (halves[:, :, 1] << 4)).reshape(n, -1).contiguous()


def widened(w: torch.Tensor, scale: torch.Tensor, kind: str, k: int) -> torch.Tensor:
    """What quantised weights stand for, in fp64."""
    if kind in ("int4", "groups"):
        both = w.view(w.shape[0], -1, 1, 128).to(torch.int32)
        w = torch.cat([(both << 28) >> 28, both >> 4], 2).reshape(w.shape[0], -1)[:, :k]
    if kind == "groups":
        return w.double() * scale.double().t().repeat_interleave(128, 1)[:, :k]
    return w.double() * scale.double()[:, None]


def tiles(m: int, n: int) -> Callable[[Mapping[str, int]], tuple[int, int]]:
    """The grid: a program for each tile of the result."""
    return lambda meta: (tl.cdiv(n, meta["BN"]), tl.cdiv(m, meta["BM"]))


def run(kind: str, m: int, n: int, k: int, device: str) -> float:
    """Multiplies by quantised weights; returns the relative error against fp64."""
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w, scale = quantised(torch.randn(n, k, device=device), kind)
    out = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    KERNELS[kind][tiles(m, n)](w, x, scale, out)
    want = x.double() @ widened(w, scale, kind, k).t()
    return ((out.double() - want).norm() / want.norm()).item()


def main() -> None:
    """Runs all of them, on the GPU or in the interpreter, then shows the kernel for int8."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (64, 8192, 8192)) if on_gpu else ("cpu", (20, 136, 192))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for kind in KINDS:
        error = run(kind, *shape, device)
        print(f"{kind} weights {' x '.join(map(str, shape))}: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    m, n, k = 64, 8192, 8192
    args = (
        torch.empty(n, k, device="meta", dtype=torch.int8),
        torch.empty(m, k, device="meta", dtype=torch.bfloat16),
        torch.empty(n, device="meta"),
        torch.empty(m, n, device="meta", dtype=torch.bfloat16),
    )
    grid = tiles(m, n)
    OUT.mkdir(exist_ok=True)
    path = OUT / "weight_only.cu"
    path.write_text(weight_only.cuda(*args, grid=grid), encoding="utf-8")
    print("\n" + weight_only.report(*args, grid=grid))
    print(f"\nCUDA text: {path}")


if __name__ == "__main__":
    main()
