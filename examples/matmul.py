"""A matmul, run and shown: `python examples/matmul.py` (or `make demo`).

With a Hopper GPU it runs on random bf16 data and is checked against torch. Without one, a small
matmul runs in the interpreter, and the specialised kernel is compiled to a cubin all the same.
"""

import time
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
M, N, K = 8192, 8192, 4096


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """C[M, N] = A[M, K] @ B[K, N]; one program computes a BM x BN tile of C."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def grid_of(c: torch.Tensor):
    """The grid for a result: one program per tile."""
    return lambda meta: (tl.cdiv(c.shape[0], meta["BM"]), tl.cdiv(c.shape[1], meta["BN"]))


def run(m: int, n: int, k: int, device: str) -> float:
    """Multiplies random bf16 matrices; returns the relative error against fp64."""
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
    c = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    matmul[grid_of(c)](a, b, c)
    want = a.double() @ b.double()
    return ((c.double() - want).norm() / want.norm()).item()


def why_no_gpu() -> str | None:
    """Why the kernel cannot run here; None where it can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    return None if major == 9 else f"the GPU has compute capability {major}.{minor}, not 9.0"


def roles(cuda: str) -> str:
    """The CUDA text from the first role on."""
    lines = cuda.splitlines()
    starts = [i for i, line in enumerate(lines) if "// ------" in line]
    entry = next(i for i, line in enumerate(lines) if 'extern "C"' in line)
    return "\n".join(lines[starts[0] - 1 if starts else entry :])


def show_compiled() -> None:
    """Compiles for 8192 x 8192 x 4096 from shapes alone, writes the CUDA text, prints the plan."""
    a = torch.empty(M, K, device="meta", dtype=torch.bfloat16)
    b = torch.empty(K, N, device="meta", dtype=torch.bfloat16)
    c = torch.empty(M, N, device="meta", dtype=torch.bfloat16)
    kernel = matmul.compile(a, b, c, grid=grid_of(c))
    assert kernel.compiled is not None
    OUT.mkdir(exist_ok=True)
    path = OUT / "matmul.cu"
    path.write_text(kernel.module.source, encoding="utf-8")
    print(f"\nThe roles of the kernel for {M} x {N} x {K}, from {path}:\n")
    print(roles(kernel.module.source))
    print("\n" + matmul.report(a, b, c, grid=grid_of(c)))
    print(f"\ncompiled to a cubin of {len(kernel.compiled.cubin)} bytes; CUDA text: {path}")


def main() -> None:
    """Runs the matmul where it can, then shows the compiled kernel."""
    torch.manual_seed(0)
    reason = why_no_gpu()
    if reason is None:
        device, shape, place = "cuda", (M, N, K), torch.cuda.get_device_name()
    else:
        print(f"No Hopper GPU ({reason}): running in the interpreter, compiling without a launch.")
        device, shape, place = "cpu", (200, 136, 96), "the interpreter"
    start = time.perf_counter()
    error = run(*shape, device)
    seconds = time.perf_counter() - start
    print(
        f"matmul {' x '.join(map(str, shape))} bf16 in {place}: relative error {error:.1e}, ",
        end="",
    )
    print(f"{seconds:.2f} s with compiling")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")
    show_compiled()


if __name__ == "__main__":
    main()
