"""Matmuls with work on the result: residual, fp8 rows with their maxima, sums of squares, dropout.

Each epilogue is ordinary tile code after the K loop. It runs under the next tile's loop where the
result is stored in one piece, and on the accumulators of one warpgroup while the other multiplies.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


def product(x, w, m, n, BM, BN, BK):
    """A BM x BN tile of x @ w in f32."""
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, n), (BK, BN)), acc)
    return acc


# fmt: off
@tiledsl.jit
def residual(x: tl.Tensor, w: tl.Tensor, old: tl.Tensor, out: tl.Tensor,
             BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """out[M, N] = old[M, N] + x @ w."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = product(x, w, m, n, BM, BN, BK)
    out.store((m, n), acc + old.load((m, n), (BM, BN)).to(tl.float32))


@tiledsl.jit
def quantised(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, scales: tl.Tensor,
              BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """out[M, N] fp8 and scales[M, N / BN] f32: x @ w with a scale per row of a tile."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = product(x, w, m, n, BM, BN, BK)
    scale = tl.maximum(tl.max(tl.abs(acc), 1), 1e-12) * (1.0 / 448.0)
    out.store((m, n), acc / scale[:, None])
    scales.store((m, tl.program_id(1)), scale[:, None])


@tiledsl.jit
def with_squares(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, squares: tl.Tensor,
                 BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """out[M, N] = x @ w and squares[N / BN, M]: the sum of squares of each row of a tile."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = product(x, w, m, n, BM, BN, BK)
    squares.store((tl.program_id(1), m), tl.sum(acc * acc, 1)[None, :])
    out.store((m, n), acc)


@tiledsl.jit
def dropout(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, seed: tl.int32, keep: tl.float32,
            BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """out[M, N] = (x @ w) / keep where a random number of the element is below keep, else 0."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = product(x, w, m, n, BM, BN, BK)
    rows, cols = m + tl.arange(0, BM), n + tl.arange(0, BN)
    chance = tl.rand(seed, rows[:, None] * out.shape[1] + cols[None, :])
    out.store((m, n), tl.where(chance < keep, acc / keep, 0.0))


@tiledsl.jit
def both_ways(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, turned: tl.Tensor,
              BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """out[M, N] = x @ w and turned[N, M], its transpose."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = product(x, w, m, n, BM, BN, BK)
    out.store((m, n), acc)
    turned.store((n, m), tl.trans(acc))
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """The relative error over all elements."""
    return ((got.double() - want).norm() / want.norm()).item()


def results(
    kind: str, x: torch.Tensor, w: torch.Tensor
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """What a kernel gives and what it should give, in pairs."""
    m, n = x.shape[0], w.shape[1]
    grid, tiles = grid_of(m, n), (n + 127) // 128

    def nothing(*shape: int, dtype: torch.dtype = x.dtype) -> torch.Tensor:
        return torch.full(shape, float("nan"), device=x.device).to(dtype)

    out, want = nothing(m, n), x.double() @ w.double()
    match kind:
        case "residual":
            old = torch.randn(m, n, device=x.device, dtype=x.dtype)
            residual[grid](x, w, old, out)
            return ((out, want + old.double()),)
        case "quantised":
            small = nothing(m, n, dtype=torch.float8_e4m3fn)
            scales = nothing(m, tiles, dtype=torch.float32)
            quantised[grid](x, w, small, scales)
            wide = scales.repeat_interleave(128, 1)[:, :n]
            return ((small.float() * wide, want),)
        case "with_squares":
            squares = nothing(tiles, m, dtype=torch.float32)
            with_squares[grid](x, w, out, squares)
            return (out, want), (squares.sum(0), want.square().sum(1))
        case "dropout":
            dropout[grid](x, w, out, 7, 0.75)
            kept = out != 0
            share = torch.tensor(abs(kept.double().mean().item() - 0.75) < 0.05)
            return (out, want / 0.75 * kept), (share, torch.tensor(1.0))
        case _:
            turned = nothing(n, m)
            both_ways[grid](x, w, out, turned)
            return (out, want), (turned, want.t())


KINDS = ("residual", "quantised", "with_squares", "dropout", "both_ways")


def run(kind: str, m: int, n: int, k: int, device: str) -> float:
    """Runs a kernel on random bf16 data; returns the largest relative error against fp64."""
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16).t()
    return max(relative(got, want) for got, want in results(kind, x, w))


def limit_of(kind: str) -> float:
    """The error to allow: fp8 has three bits behind the point."""
    return 4e-2 if kind == "quantised" else 4e-3


def main() -> None:
    """Runs all kernels, on the GPU or in the interpreter, then shows the first one."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 4096, 1024)) if on_gpu else ("cpu", (96, 200, 80))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for kind in KINDS:
        error = run(kind, *shape, device)
        print(f"{kind} {' x '.join(map(str, shape))}: relative error {error:.1e}")
        if not error < limit_of(kind):
            raise SystemExit("the result is wrong")
    m, n, k = 4096, 4096, 1024
    shapes = ((m, k), (k, n), (m, n), (m, n))
    args = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    OUT.mkdir(exist_ok=True)
    path = OUT / "fused_epilogues.cu"
    path.write_text(residual.cuda(*args, grid=grid_of(m, n)), encoding="utf-8")
    print("\n" + residual.report(*args, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


if __name__ == "__main__":
    main()
