"""Grouped matmuls of a mixture of experts: rows sorted by group, offsets on the device.

Group g has rows offsets[g] to offsets[g + 1] of x and weights w[g]; groups may be of any size or
empty. The programs of the grid are the tiles of all groups, of which there are at most one more per
group than whole tiles fit; a program finds its group by the tiles that start before it, and
programs past the last tile have nothing to do. Nothing is read back to the host.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
ROWS = 128
"""Rows of a tile."""


# fmt: off
@tiledsl.jit
def first_tiles(offsets: tl.Tensor, starts: tl.Tensor, P: tl.constexpr, BM: tl.constexpr = ROWS):
    """starts[g]: tiles of the groups before g, for offsets [G + 1]. P: power of two above G."""
    first, last = offsets.load((0,), (P,)), offsets.load((1,), (P,))
    is_group = tl.arange(0, P) < offsets.shape[0] - 1
    tl.device_assert(first <= last, "group offsets have to ascend", mask=is_group)
    tiles = tl.where(is_group, tl.cdiv(last - first, BM), 0)
    starts.store((1,), tl.cumsum(tiles, 0))
    starts.store((0,), tl.zeros((1,), tl.int32))


@tiledsl.jit
def grouped_matmul(x: tl.Tensor, w: tl.Tensor, offsets, starts, c: tl.Tensor,
                   G: tl.constexpr, STEPS: tl.constexpr, BM: tl.constexpr = ROWS,
                   BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """c[rows of g] = x[rows of g, K] @ w[g, K, N]. STEPS: of the search, 2**STEPS >= G."""
    tl.device_assert((w.shape[0] == G) & (x.shape[1] == w.shape[1]), "x [T, K] and w [G, K, N]")
    tl.device_assert((c.shape[0] == x.shape[0]) & (c.shape[1] == w.shape[2]), "c [T, N]")
    tile, n = tl.program_id(0), tl.program_id(1) * BN
    low, high = 0, G
    for _ in range(0, STEPS):
        middle = (low + high) // 2
        is_after = tl.load(starts + middle) <= tile
        low, high = tl.where(is_after, middle, low), tl.where(is_after, high, middle)
    begin, end = tl.load(offsets + low), tl.load(offsets + low + 1)
    tl.device_assert((begin >= 0) & (begin <= end), "group offsets have to ascend from 0")
    tl.device_assert(end <= x.shape[0], "group offsets lie beyond the rows of x")
    m = begin + (tile - tl.load(starts + low)) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.where(m < end, x.shape[1], 0), BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((low, k, n), (BK, BN)), acc)
    c.store((m, n), acc, end=end)
# fmt: on


def grouped(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """x: [T, K] sorted by group; w: [G, K, N]; offsets: [G + 1] int32, ascending from 0 to T."""
    check(x, w, offsets)
    groups, n = w.shape[0], w.shape[2]
    out = torch.empty(x.shape[0], n, device=x.device, dtype=x.dtype)
    starts = torch.empty(groups + 1, device=x.device, dtype=torch.int32)
    first_tiles[(1,)](offsets, starts, 1 << groups.bit_length())
    most = x.shape[0] // ROWS + groups
    steps = (groups - 1).bit_length()

    def grid(meta):
        return most, tl.cdiv(n, meta["BN"])

    grouped_matmul[grid](x, w, offsets, starts, out, groups, steps)
    return out


def check(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> None:
    """Raises ValueError for shapes that do not go together; values on the device are not read."""
    if x.dim() != 2 or w.dim() != 3 or x.shape[1] != w.shape[1]:
        raise ValueError(f"expected x [T, K] and w [G, K, N], got {[*x.shape]} and {[*w.shape]}")
    if offsets.dtype != torch.int32 or offsets.shape != (w.shape[0] + 1,):
        raise ValueError(
            f"expected {w.shape[0] + 1} offsets of int32, got {[*offsets.shape]} {offsets.dtype}"
        )
    if offsets.device.type != "cpu":
        return
    steps = offsets.diff()
    if offsets[0] != 0 or offsets[-1] > x.shape[0] or bool((steps < 0).any()):
        raise ValueError(f"offsets must ascend from 0 to at most {x.shape[0]}, got {offsets}")


def run(
    sizes: list[int], n: int, k: int, device: str, dtype: torch.dtype = torch.bfloat16
) -> float:
    """Multiplies random groups; returns the relative error against fp64."""
    x = torch.randn(sum(sizes), k, device=device, dtype=dtype)
    w = torch.randn(len(sizes), n, k, device=device, dtype=dtype).transpose(1, 2)
    ends = torch.tensor([0, *sizes]).cumsum(0)
    got = grouped(x, w, ends.to(device=device, dtype=torch.int32))
    parts = [x[a:b].double() @ y.double() for a, b, y in zip(ends, ends[1:], w, strict=False)]
    want = torch.cat(parts)
    return ((got.double() - want).norm() / want.norm()).item()


def show_compiled(sizes: list[int], n: int, k: int) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    groups, rows = len(sizes), sum(sizes)
    x, c = (torch.empty(rows, d, device="meta", dtype=torch.bfloat16) for d in (k, n))
    w = torch.empty(groups, n, k, device="meta", dtype=torch.bfloat16).transpose(1, 2)
    offsets, starts = (torch.empty(groups + 1, device="meta", dtype=torch.int32) for _ in range(2))
    args = (x, w, offsets, starts, c, groups, (groups - 1).bit_length())

    def grid(meta):
        return rows // ROWS + groups, tl.cdiv(n, meta["BN"])

    OUT.mkdir(exist_ok=True)
    path = OUT / "grouped_matmul.cu"
    path.write_text(grouped_matmul.cuda(*args, grid=grid), encoding="utf-8")
    print("\n" + grouped_matmul.report(*args, grid=grid))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs groups of uneven size, on the GPU or in the interpreter, then shows the kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (2048, 2048)) if on_gpu else ("cpu", (136, 72))
    sizes = [4000, 0, 1, 8500, 129, 3500] if on_gpu else [130, 0, 1, 70, 128]
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    error = run(sizes, *shape, device)
    print(f"grouped matmul, {len(sizes)} groups: relative error {error:.1e}")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")
    show_compiled([2048] * 8, 4096, 2048)


if __name__ == "__main__":
    main()
