"""A norm folded into the product behind it: rmsnorm(x) @ w in one kernel, x is read once.

The factor of a row does not depend on K, so that it may be applied to the result. Its sum of
squares is made beside the product, from the tiles of x that the product reads anyway. What the norm
multiplies columns by is a factor of the rows of w, once and for all.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def norm_matmul(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, eps: tl.float32,
                BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """out[M, N] = (x / sqrt(mean(x^2) + eps)) @ w for x[M, K], w[K, N]."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for k in range(0, x.shape[1], BK):
        tile = x.load((m, k), (BM, BK))
        acc = tl.dot(tile, w.load((k, n), (BK, BN)), acc)
        wide = tile.to(tl.float32)
        squares += tl.sum(wide * wide, axis=1)
    factor = tl.rsqrt(squares / x.shape[1] + eps)
    out.store((m, n), acc * factor[:, None])


@tiledsl.jit
def layer_norm_matmul(x: tl.Tensor, w: tl.Tensor, sums: tl.Tensor, out: tl.Tensor, eps: tl.float32,
                      BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto,
                      BK: tl.constexpr = tl.auto):
    """out[M, N] = ((x - mean) / sqrt(var + eps)) @ w; sums[N]: those of the columns of w, f32."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    total, squares = tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32)
    for k in range(0, x.shape[1], BK):
        tile = x.load((m, k), (BM, BK))
        acc = tl.dot(tile, w.load((k, n), (BK, BN)), acc)
        wide = tile.to(tl.float32)
        total += tl.sum(wide, axis=1)
        squares += tl.sum(wide * wide, axis=1)
    mean = total / x.shape[1]
    factor = tl.rsqrt(squares / x.shape[1] - mean * mean + eps)
    of_columns = sums.load((n,), (BN,))
    out.store((m, n), (acc - mean[:, None] * of_columns[None, :]) * factor[:, None])
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def folded(x: torch.Tensor, w: torch.Tensor, kind: str = "rms", eps: float = 1e-6) -> torch.Tensor:
    """The norm of the rows of x[M, K] and then the product with w[K, N]."""
    out = torch.full((x.shape[0], w.shape[1]), float("nan"), device=x.device, dtype=x.dtype)
    grid = grid_of(*out.shape)
    if kind == "rms":
        norm_matmul[grid](x, w, out, eps)
    else:
        layer_norm_matmul[grid](x, w, w.sum(0, dtype=torch.float32), out, eps)
    return out


def reference(x: torch.Tensor, w: torch.Tensor, kind: str = "rms", eps: float = 1e-6):
    """The same in fp64."""
    wide = x.double()
    if kind != "rms":
        wide = wide - wide.mean(1, keepdim=True)
    return wide * (wide.square().mean(1, keepdim=True) + eps).rsqrt() @ w.double()


def run(m: int, n: int, k: int, device: str, kind: str = "rms") -> float:
    """Runs on random bf16 data with rows of different sizes; the relative error against fp64."""
    sizes = torch.rand(m, 1, device=device) * 4 + 0.1
    x = (torch.randn(m, k, device=device) * sizes + (kind != "rms")).to(torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16).t()
    want = reference(x, w, kind)
    return ((folded(x, w, kind).double() - want).norm() / want.norm()).item()


def main() -> None:
    """Runs both norms, on the GPU or in the interpreter, then shows the first kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 4096, 4096)) if on_gpu else ("cpu", (96, 200, 80))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for kind in ("rms", "layer"):
        error = run(*shape, device, kind)
        print(f"{kind} norm and product {' x '.join(map(str, shape))}: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    m, n, k = 4096, 4096, 4096
    x, w, out = (
        torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((m, k), (k, n), (m, n))
    )
    OUT.mkdir(exist_ok=True)
    path = OUT / "norm_matmul.cu"
    path.write_text(norm_matmul.cuda(x, w, out, 1e-6, grid=grid_of(m, n)), encoding="utf-8")
    print("\n" + norm_matmul.report(x, w, out, 1e-6, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


if __name__ == "__main__":
    main()
