"""Batched matmuls: 3-D tensors of any strides, and a batch that all share.

The batch is the third axis of the grid. A tensor of one matrix serves all batches; one that is
expanded (stride 0 along the batch) is passed as its one matrix, since TMA has no stride of 0.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def batched_matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr = tl.auto,
                   BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """c[Z, M, N] = a[Z, M, K] @ b[Z, K, N]; a and b may have one matrix for all."""
    m, n, z = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    za, zb = tl.minimum(z, a.shape[0] - 1), tl.minimum(z, b.shape[0] - 1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[2], BK):
        acc = tl.dot(a.load((za, m, k), (BM, BK)), b.load((zb, k, n), (BK, BN)), acc)
    c.store((z, m, n), acc)
# fmt: on


def grid_of(z: int, m: int, n: int):
    """One program per tile of each result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]), z)


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a: [Z, M, K] or [1, M, K]; b: [Z, K, N] or [1, K, N], of any strides."""
    batches = {x.shape[0] for x in (a, b)} if a.dim() == b.dim() == 3 else set()
    if not batches or len(batches - {1}) > 1 or a.shape[2] != b.shape[1]:
        raise ValueError(f"expected [Z, M, K] and [Z, K, N], got {[*a.shape]} and {[*b.shape]}")
    z = max(batches)
    c = torch.empty(z, a.shape[1], b.shape[2], device=a.device, dtype=a.dtype)
    a, b = (x[:1] if x.stride(0) == 0 else x for x in (a, b))
    batched_matmul[grid_of(z, a.shape[1], b.shape[2])](a, b, c)
    return c


def run(
    z: int, m: int, n: int, k: int, device: str, *, shared: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> float:  # fmt: skip
    """Multiplies random batches; returns the relative error against fp64."""
    a = torch.randn(z, m, k, device=device, dtype=dtype)
    b = torch.randn(1 if shared else z, n, k, device=device, dtype=dtype).transpose(1, 2)
    want = a.double() @ b.double()
    return ((batched(a, b).double() - want).norm() / want.norm()).item()


def main() -> None:
    """Runs batches with weights of their own and shared ones, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (16, 2048, 2048, 1024)) if on_gpu else ("cpu", (3, 96, 136, 80))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for shared in (False, True):
        error = run(*shape, device, shared=shared)
        print(f"batched matmul {'shared' if shared else 'own'} weights: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    z, m, n, k = 16, 2048, 2048, 1024
    shapes = ((z, m, k), (z, k, n), (z, m, n))
    args = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    OUT.mkdir(exist_ok=True)
    path = OUT / "batched_matmul.cu"
    path.write_text(batched_matmul.cuda(*args, grid=grid_of(z, m, n)), encoding="utf-8")
    print("\n" + batched_matmul.report(*args, grid=grid_of(z, m, n)))
    print(f"\nCUDA text: {path}")


if __name__ == "__main__":
    main()
