"""A matmul for each pair of two lists, in one launch: problems of any sizes with their own memory.

The programs are the tiles of all problems; each finds its problem by counting. Tensor maps of all
tensors are parameters of the kernel, so that nothing is copied to the device and nothing waits.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"


# fmt: off
@tiledsl.jit
def grouped_list(a: tl.TensorList, b: tl.TensorList, c: tl.TensorList, BM: tl.constexpr = tl.auto,
                 BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """c[g] = a[g] @ b[g] for all g."""
    tl.static_assert((len(a) == len(b)) & (len(a) == len(c)), "lists of one length")
    tile = tl.program_id(0)
    group, first, start = 0, 0, 0
    for g in range(0, len(a)):
        tiles = tl.cdiv(a[g].shape[0], BM) * tl.cdiv(b[g].shape[1], BN)
        is_here = (tile >= start) & (tile < start + tiles)
        group, first = tl.where(is_here, g, group), tl.where(is_here, start, first)
        start += tiles
    x, y = a[group], b[group]
    rows = tl.cdiv(x.shape[0], BM)
    m, n = (tile - first) % rows * BM, (tile - first) // rows * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), y.load((k, n), (BK, BN)), acc)
    c[group].store((m, n), acc)
# fmt: on


def grid_of(shapes: list[tuple[int, int, int]]):
    """One program per tile of each result, for problems of M x N x K."""
    return lambda meta: (
        sum(tl.cdiv(m, meta["BM"]) * tl.cdiv(n, meta["BN"]) for m, n, _ in shapes),
    )


def products(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    """a[g] @ b[g] for all g."""
    shapes = [(x.shape[0], y.shape[1], x.shape[1]) for x, y in zip(a, b, strict=True)]
    if any(x.shape[1] != y.shape[0] for x, y in zip(a, b, strict=True)):
        raise ValueError("expected a[g] [M, K] and b[g] [K, N]")
    c = [
        torch.full((m, n), float("nan"), device=x.device, dtype=x.dtype)
        for (m, n, _), x in zip(shapes, a, strict=True)
    ]
    grouped_list[grid_of(shapes)](a, b, c)
    return c


def tensors(shapes: list[tuple[int, int, int]], device: str) -> tuple[list[torch.Tensor], ...]:
    """Random bf16 operands; those on the right are contiguous along K."""

    def normal(*shape: int) -> torch.Tensor:
        if device == "meta":
            return torch.empty(shape, device=device, dtype=torch.bfloat16)
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    return [normal(m, k) for m, _, k in shapes], [normal(n, k).t() for _, n, k in shapes]


def run(shapes: list[tuple[int, int, int]], device: str) -> float:
    """The largest relative error of all products against fp64."""
    a, b = tensors(shapes, device)
    errors = [0.0]
    for x, y, z in zip(a, b, products(a, b), strict=True):
        want = x.double() @ y.double()
        if want.numel():
            error = (z.double() - want).norm() / want.norm().clamp(min=1e-30)
            errors.append(error.item())
    return max(errors)


def main() -> None:
    """Runs problems of uneven sizes, on the GPU or in the interpreter, then shows the kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shapes = "cpu", [(130, 136, 72), (0, 64, 64), (1, 200, 80), (70, 8, 264)]
    if on_gpu:
        device, shapes = "cuda", [(4096, 2048, 1024), (0, 64, 64), (1, 4096, 4096), (130, 136, 72)]
    else:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    error = run(shapes, device)
    print(f"{len(shapes)} products of their own sizes: relative error {error:.1e}")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")
    shapes = [(4096 >> i, 4096, 2048) for i in range(8)]
    a, b = tensors(shapes, "meta")
    c = [torch.empty(m, n, device="meta", dtype=torch.bfloat16) for m, n, _ in shapes]
    OUT.mkdir(exist_ok=True)
    path = OUT / "grouped_list.cu"
    path.write_text(grouped_list.cuda(a, b, c, grid=grid_of(shapes)), encoding="utf-8")
    print("\n" + grouped_list.report(a, b, c, grid=grid_of(shapes)))
    print(f"\nCUDA text: {path}")


if __name__ == "__main__":
    main()
