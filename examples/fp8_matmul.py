"""FP8 matmuls: sums of the tensor core or f32 sums, scales per tensor or per row and column.

The tensor core adds up fp8 products with some 14 bits. By default `tl.dot` moves the sum to f32
after every 128 elements of K; `max_num_imprecise_acc` says how many it may take instead. b is given
as the transposed view of a row-major [N, K] tensor: fp8 operands are read along K.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
FAST = 1 << 20
"""More products than there ever are: the tensor core adds them all up."""


# fmt: off
@tiledsl.jit
def fp8_matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, scale: tl.float32,
               LIMIT: tl.constexpr = None,
               BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """c[M, N] = scale * (a[M, K] @ b[K, N])."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x, y = a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN))
        acc = tl.dot(x, y, acc, max_num_imprecise_acc=LIMIT)
    c.store((m, n), acc * scale)


@tiledsl.jit
def fp8_matmul_rowwise(a: tl.Tensor, b: tl.Tensor, rows: tl.Tensor, cols: tl.Tensor, c: tl.Tensor,
                       LIMIT: tl.constexpr = None, BM: tl.constexpr = tl.auto,
                       BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """c[M, N] = rows[M, 1] * cols[1, N] * (a[M, K] @ b[K, N]); rows: [M] f32, cols: [N] f32."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x, y = a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN))
        acc = tl.dot(x, y, acc, max_num_imprecise_acc=LIMIT)
    acc = acc * rows.load((m,), (BM,))[:, None]
    c.store((m, n), acc * cols.load((n,), (BN,))[None, :])
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def fp8(*shape: int, device: str, dtype: torch.dtype = torch.float8_e4m3fn) -> torch.Tensor:
    """Random normal numbers, rounded to fp8."""
    return torch.randn(shape, device=device).to(dtype)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """The relative error over all elements."""
    return ((got.double() - want).norm() / want.norm()).item()


def run(
    m: int,
    n: int,
    k: int,
    device: str,
    *,
    limit: int | None = None,
    rowwise: bool = False,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float8_e4m3fn, torch.float8_e4m3fn),
) -> float:
    """Multiplies random fp8 matrices; returns the relative error against fp64."""
    a = fp8(m, k, device=device, dtype=dtypes[0])
    b = fp8(n, k, device=device, dtype=dtypes[1]).t()
    c = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    want = a.double() @ b.double()
    if rowwise:
        rows, cols = (torch.rand(x, device=device) + 0.5 for x in (m, n))
        fp8_matmul_rowwise[grid_of(m, n)](a, b, rows, cols, c, limit)
        return relative(c, want * rows.double()[:, None] * cols.double())
    fp8_matmul[grid_of(m, n)](a, b, c, 0.5, limit)
    return relative(c, want * 0.5)


def show_compiled(m: int, n: int, k: int) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    a, b = (torch.empty(x, k, device="meta", dtype=torch.float8_e4m3fn) for x in (m, n))
    c = torch.empty(m, n, device="meta", dtype=torch.bfloat16)
    OUT.mkdir(exist_ok=True)
    path = OUT / "fp8_matmul.cu"
    text = fp8_matmul.cuda(a, b.t(), c, 1.0, grid=grid_of(m, n))
    path.write_text(text, encoding="utf-8")
    print("\n" + fp8_matmul.report(a, b.t(), c, 1.0, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs both kinds of sums, on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 4096, 4096)) if on_gpu else ("cpu", (96, 200, 320))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for name, limit in (("f32 sums", None), ("sums of the tensor core", FAST)):
        error = run(*shape, device, limit=limit)
        print(f"fp8 matmul {' x '.join(map(str, shape))}, {name}: relative error {error:.1e}")
        if not error < 6e-3:
            raise SystemExit("the result is wrong")
    show_compiled(8192, 8192, 4096)


if __name__ == "__main__":
    main()
