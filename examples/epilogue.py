"""A linear layer: matmul, bias row, scale and activation in one kernel.

The helpers below are plain functions: the compiler inlines them, and the one that is used is chosen
at launch through a constexpr.
"""

import torch

import tiledsl
import tiledsl.language as tl


def relu(x):
    """max(x, 0)."""
    return tl.maximum(x, 0.0)


def gelu(x):
    """x * Phi(x), with the error function."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


# fmt: off
@tiledsl.jit
def linear(x: tl.Tensor, w: tl.Tensor, bias: tl.Tensor, out: tl.Tensor, scale: tl.float32,
           activation: tl.constexpr = gelu,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    """out[M, N] = activation(scale * (x[M, K] @ w[K, N]) + bias[N])."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, n), (BK, BN)), acc)
    row = bias.load((n,), (BN,)).to(tl.float32)
    out.store((m, n), activation(acc * scale + row))
# fmt: on


def run(m: int, n: int, k: int, device: str, activation) -> float:
    """Runs the layer on random bf16 data; returns the relative error against fp64."""
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16).t()
    bias = torch.randn(n, device=device, dtype=torch.bfloat16)
    out = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    scale = k**-0.5

    def grid(meta):
        return tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"])

    linear[grid](x, w, bias, out, scale, activation)
    want = scale * (x.double() @ w.double()) + bias.double()
    want = want.relu() if activation is relu else torch.nn.functional.gelu(want)
    return ((out.double() - want).norm() / want.norm()).item()


def main() -> None:
    """Runs both activations, on the GPU or in the interpreter, and prints the plan."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, m, n, k = ("cuda", 4096, 4096, 1024) if on_gpu else ("cpu", 96, 200, 80)
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for activation in (gelu, relu):
        error = run(m, n, k, device, activation)
        print(f"linear {m} x {n} x {k}, {activation.__name__}: relative error {error:.1e}")
        if not error < 5e-3:
            raise SystemExit("the result is wrong")
    meta = [
        torch.empty(s, device="meta", dtype=torch.bfloat16)
        for s in ((4096, 1024), (1024, 4096), 4096, (4096, 4096))
    ]
    report = linear.report(
        *meta, 0.03, grid=lambda c: (tl.cdiv(4096, c["BM"]), tl.cdiv(4096, c["BN"]))
    )
    print("\n" + report)


if __name__ == "__main__":
    main()
