"""Two matmuls in a row, batched, without writing the product between them: out = f(a @ b) @ c.

The middle product of a tile of rows stays in registers: a tile of it, rounded to the input's dtype,
is the left operand of the second dot at once.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


def identity(x):
    """No function between the products."""
    return x


def relu(x):
    """The larger of x and 0."""
    return tl.maximum(x, 0.0)


# fmt: off
@tiledsl.jit
def back_to_back(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, out: tl.Tensor, between: tl.constexpr,
                 K: tl.constexpr, P: tl.constexpr, BM: tl.constexpr = 128, BN: tl.constexpr = 128):
    """out[Z, M, P] = between(a[Z, M, K] @ b[Z, K, N]) @ c[Z, N, P]; K and P fit one tile."""
    m, z = tl.program_id(0) * BM, tl.program_id(1)
    rows = a.load((z, m, 0), (BM, K))
    acc = tl.zeros((BM, P), tl.float32)
    for n in range(0, c.shape[1], BN):
        middle = between(tl.dot(rows, b.load((z, 0, n), (K, BN))))
        acc = tl.dot(middle.to(c.dtype), c.load((z, n, 0), (BN, P)), acc)
    out.store((z, m, 0), acc)
# fmt: on


def run(shape: tuple[int, ...], device: str, between=relu, dtype: torch.dtype = torch.bfloat16):
    """Multiplies random matrices of [Z, M, N, K, P]; returns the relative error against fp64."""
    Z, M, N, K, P = shape
    a = torch.randn(Z, M, K, device=device, dtype=dtype) * K**-0.5
    b = torch.randn(Z, N, K, device=device, dtype=dtype).transpose(1, 2)
    c = torch.randn(Z, N, P, device=device, dtype=dtype)
    out = torch.full((Z, M, P), float("nan"), device=device, dtype=dtype)
    back_to_back[tl.cdiv(M, 128), Z](a, b, c, out, between, K, P)
    middle = a.double() @ b.double()
    middle = middle.relu() if between is relu else middle
    want = middle.to(dtype).double() @ c.double()
    return ((out.double() - want).norm() / want.norm()).item()


def show_compiled() -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    shapes = (8, 4096, 128), (8, 128, 4096), (8, 4096, 128), (8, 4096, 128)
    tensors = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    args = (*tensors, relu, 128, 128)
    OUT.mkdir(exist_ok=True)
    path = OUT / "back_to_back.cu"
    path.write_text(back_to_back.cuda(*args, grid=(32, 8)), encoding="utf-8")
    print("\n" + back_to_back.report(*args, grid=(32, 8)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs both variants, on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (8, 4000, 4096, 128, 128)) if on_gpu else ("cpu", (2, 70, 200, 64, 64))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for between in (relu, identity):
        error = run(shape, device, between)
        print(f"back to back {list(shape)}, {between.__name__}: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    show_compiled()


if __name__ == "__main__":
    main()
