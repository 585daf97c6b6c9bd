"""Block-scaled FP8: a scale per 1 x 128 of the activations and per 128 x 128 of the weights.

Scales are plain tile math in the K loop. Each product starts from zero, is multiplied by its
scales and added to the sum in f32. Kernels that read the product on CUDA cores in every iteration
stay specialised: the scaling of one warpgroup runs under the wgmmas of the others.
"""

from __future__ import annotations

from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
BLOCK = 128


# fmt: off
@tiledsl.jit
def block_scaled_matmul(a: tl.Tensor, b: tl.Tensor, sa: tl.Tensor, sb: tl.Tensor, c: tl.Tensor,
                        BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto):
    """c[M, N] = (a * sa) @ (b * sb).

    a: [M, K] fp8, b: [K, N] fp8. sa: [K / 128, M] f32, sb: [K / 128, N / 128] f32. The columns of a
    tile (up to 256) may lie in three blocks of b.
    """
    blocks = tl.cdiv(a.shape[1], 128)
    tl.device_assert((sa.shape[0] == blocks) & (sa.shape[1] == a.shape[0]), "sa [K / 128, M]")
    tl.device_assert(
        (sb.shape[0] == blocks) & (sb.shape[1] == tl.cdiv(b.shape[1], 128)), "sb [K / 128, N / 128]"
    )
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    block = (n % 128 + tl.arange(0, BN)) // 128
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], 128):
        product = tl.dot(a.load((m, k), (BM, 128)), b.load((k, n), (128, BN)))
        rows = sa.load((k // 128, m), (BM,))
        columns = tl.gather(sb.load((k // 128, n // 128), (3,)), block, 0)
        acc += product * (rows[:, None] * columns[None, :])
    c.store((m, n), acc)
# fmt: on


def grid_of(m: int, n: int):
    """One program per tile of the result."""
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


def block_scaled(
    a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor
) -> torch.Tensor:
    """a[M, K] @ b[K, N] with scales sa[K / 128, M] and sb[K / 128, N / 128]; the result is bf16."""
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"expected a [M, K] and b [K, N], got {[*a.shape]} and {[*b.shape]}")
    (m, k), n = a.shape, b.shape[1]
    blocks = -(-k // BLOCK)
    for name, scale, shape in (("sa", sa, [blocks, m]), ("sb", sb, [blocks, -(-n // BLOCK)])):
        if [*scale.shape] != shape or scale.dtype != torch.float32:
            raise ValueError(
                f"expected {name} of float32 {shape}, got {scale.dtype} {[*scale.shape]}"
            )
    c = torch.empty(m, n, device=a.device, dtype=torch.bfloat16)
    block_scaled_matmul[grid_of(m, n)](a, b, sa, sb, c)
    return c


def quantised(x: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x[R, K] in fp8 and the scales [K / 128, R / rows] of its blocks of `rows` x 128."""
    r, k = x.shape
    padded = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -r % rows))
    blocks = padded.view(padded.shape[0] // rows, rows, -1, BLOCK)
    scale = blocks.abs().amax((1, 3)).clamp(min=1e-12) / 448.0
    small = (blocks / scale[:, None, :, None]).view(padded.shape)[:r, :k]
    return small.to(torch.float8_e4m3fn).contiguous(), scale.t().contiguous()


def spread(scale: torch.Tensor, rows: int, shape: tuple[int, int]) -> torch.Tensor:
    """The scale of every element, [R, K]."""
    wide = scale.t().repeat_interleave(rows, 0).repeat_interleave(BLOCK, 1)
    return wide[: shape[0], : shape[1]].double()


def run(m: int, n: int, k: int, device: str) -> float:
    """Multiplies quantised matrices; returns the relative error of the product against fp64."""
    x, w = torch.randn(m, k, device=device), torch.randn(n, k, device=device)
    x *= torch.rand(m, 1, device=device) * 4
    (a, sa), (b, sb) = quantised(x, 1), quantised(w, BLOCK)
    c = block_scaled(a, b.t(), sa, sb)
    want = (a.double() * spread(sa, 1, (m, k))) @ (b.double() * spread(sb, BLOCK, (n, k))).t()
    return ((c.double() - want).norm() / want.norm()).item()


def meta_arguments(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """Arguments without data."""
    a, b = (torch.empty(x, k, device="meta", dtype=torch.float8_e4m3fn) for x in (m, n))
    sa = torch.empty(k // BLOCK, m, device="meta")
    sb = torch.empty(k // BLOCK, -(-n // BLOCK), device="meta")
    return a, b.t(), sa, sb, torch.empty(m, n, device="meta", dtype=torch.bfloat16)


def show_compiled(m: int, n: int, k: int) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    args = meta_arguments(m, n, k)
    OUT.mkdir(exist_ok=True)
    path = OUT / "block_scaled_matmul.cu"
    path.write_text(block_scaled_matmul.cuda(*args, grid=grid_of(m, n)), encoding="utf-8")
    print("\n" + block_scaled_matmul.report(*args, grid=grid_of(m, n)))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs the product, on the GPU or in the interpreter, then shows the compiled kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 7168, 2048)) if on_gpu else ("cpu", (96, 200, 320))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    error = run(*shape, device)
    print(f"block-scaled matmul {' x '.join(map(str, shape))}: relative error {error:.1e}")
    if not error < 4e-3:
        raise SystemExit("the result is wrong")
    show_compiled(4096, 7168, 2048)


if __name__ == "__main__":
    main()
