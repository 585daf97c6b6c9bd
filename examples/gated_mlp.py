"""The first half of a gated MLP: two matmuls that share an operand, joined by an activation.

out = silu(x @ gate) * (x @ up) in one kernel: each tile of x is loaded once and feeds both dots.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def gated_mlp(x: tl.Tensor, gate: tl.Tensor, up: tl.Tensor, out: tl.Tensor,
              BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """out[M, N] = silu(x[M, K] @ gate[K, N]) * (x @ up[K, N])."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    g, u = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        rows = x.load((m, k), (BM, BK))
        g = tl.dot(rows, gate.load((k, n), (BK, BN)), g)
        u = tl.dot(rows, up.load((k, n), (BK, BN)), u)
    out.store((m, n), g * tl.sigmoid(g) * u)
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def run(m: int, n: int, k: int, device: str, dtype: torch.dtype = torch.bfloat16) -> float:
    """Runs the layer on random data; returns the relative error against fp64."""
    x = torch.randn(m, k, device=device, dtype=dtype)
    gate, up = (torch.randn(n, k, device=device, dtype=dtype).t() for _ in range(2))
    out = torch.full((m, n), float("nan"), device=device, dtype=dtype)
    gate.mul_(k**-0.5)
    gated_mlp[grid_of(m, n)](x, gate, up, out)
    want = torch.nn.functional.silu(x.double() @ gate.double()) * (x.double() @ up.double())
    return ((out.double() - want).norm() / want.norm()).item()


def show_compiled(m: int, n: int, k: int) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    args = [
        torch.empty(s, device="meta", dtype=torch.bfloat16)
        for s in ((m, k), (k, n), (k, n), (m, n))
    ]
    OUT.mkdir(exist_ok=True)
    path = OUT / "gated_mlp.cu"
    path.write_text(gated_mlp.cuda(*args, grid=grid_of(m, n)), encoding="utf-8")
    print("\n" + gated_mlp.report(*args, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs the layer, on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 14336, 4096)) if on_gpu else ("cpu", (96, 200, 80))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    error = run(*shape, device)
    print(f"gated MLP {' x '.join(map(str, shape))}: relative error {error:.1e}")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")
    show_compiled(4096, 14336, 4096)


if __name__ == "__main__":
    main()
