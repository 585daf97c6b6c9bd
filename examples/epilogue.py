"""A linear layer: matmul, bias row, scale and activation in one kernel.

The helpers below are plain functions: the compiler inlines them, and the one that is used is chosen
at launch through a constexpr.
"""

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


def relu(x):
    """RELU: the larger of x and 0."""
    return tl.maximum(x, 0.0)


def gelu(x):
    """GELU: x times the normal distribution function of x."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


# fmt: off
@tiledsl.jit
def linear(x: tl.Tensor, w: tl.Tensor, bias: tl.Tensor, out: tl.Tensor, scale: tl.float32,
           activation: tl.constexpr = gelu,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """out[M, N] = activation(scale * (x[M, K] @ w[K, N]) + bias[N])."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, n), (BK, BN)), acc)
    row = bias.load((n,), (BN,)).to(tl.float32)
    out.store((m, n), activation(acc * scale + row))
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def run(m: int, n: int, k: int, device: str, activation) -> float:
    """Runs the layer on random bf16 data; returns the relative error against fp64."""
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16).t()
    bias = torch.randn(n, device=device, dtype=torch.bfloat16)
    out = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    scale = k**-0.5
    linear[grid_of(m, n)](x, w, bias, out, scale, activation)
    want = scale * (x.double() @ w.double()) + bias.double()
    want = want.relu() if activation is relu else torch.nn.functional.gelu(want)
    return ((out.double() - want).norm() / want.norm()).item()


def show_compiled(m: int, n: int, k: int) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    x, w, bias, out = (
        torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for shape in ((m, k), (k, n), (n,), (m, n))
    )
    kernel = linear.compile(x, w, bias, out, 0.03, grid=grid_of(m, n))
    OUT.mkdir(exist_ok=True)
    path = OUT / "epilogue.cu"
    path.write_text(kernel.module.source, encoding="utf-8")
    print("\n" + linear.report(x, w, bias, out, 0.03, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs both activations, on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 4096, 1024)) if on_gpu else ("cpu", (96, 200, 80))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for activation in (gelu, relu):
        error = run(*shape, device, activation)
        name = " x ".join(map(str, shape))
        print(f"linear {name}, {activation.__name__}: relative error {error:.1e}")
        if not error < 4e-3:
            raise SystemExit("the result is wrong")
    show_compiled(4096, 4096, 1024)


if __name__ == "__main__":
    main()
