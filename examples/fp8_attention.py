"""FP8 attention, forward: scores and output from e4m3 products, softmax in f32.

Queries, keys and values are e4m3 with a scale per head; the weights of the softmax are rounded to
e4m3 too, times 256 so that small ones keep their bits. The tensor core adds up the rounded ones: a
product with eight columns of 1/8, which are added. fp8 products are read along K, so the values are
given transposed, [B, H, D, L].
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

import tiledsl
import tiledsl.language as tl

OUT = Path(__file__).resolve().parents[1] / "out"
FAST = 1 << 20
LOG2E = 1.4426950408889634


# fmt: off
@tiledsl.jit
def fp8_attention_kernel(q: tl.Tensor, k: tl.Tensor, vt: tl.Tensor, scales: tl.Tensor,
                         eighths: tl.Tensor, o: tl.Tensor, scale: tl.constexpr,
                         causal: tl.constexpr, D: tl.constexpr,
                         BM: tl.constexpr = 128, BN: tl.constexpr = 128):
    """scales: [B, H, 2] f32, of scores (queries times keys) and of values. eighths: [8, >= BN]."""
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    factor = tl.sum(scales.load((b, h, 0), (1,)), 0) * (scale * LOG2E)
    rows, cols = (m + tl.arange(0, BM))[:, None], tl.arange(0, BN)[None, :]
    queries = q.load((b, h, m, 0), (BM, D))
    columns = tl.trans(eighths.load((0, 0), (8, BN)))
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = tl.minimum(m + BM, k.shape[2]) if causal else k.shape[2]
    for n in range(0, end, BN):
        s = tl.dot(queries, tl.trans(k.load((b, h, n, 0), (BN, D))), max_num_imprecise_acc=FAST)
        s = tl.where(n + cols < k.shape[2], s, -float("inf"))
        if causal:
            s = tl.where(rows >= n + cols, s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s * factor - (new * factor - 8.0)[:, None]).to(q.dtype)
        fade = tl.exp2((top - new) * factor)
        total = total * fade + tl.sum(tl.dot(p, columns, max_num_imprecise_acc=FAST), 1)
        values = tl.trans(vt.load((b, h, 0, n), (D, BN)))
        acc = tl.dot(p, values, acc * fade[:, None], max_num_imprecise_acc=FAST)
        top = new
    weight = tl.sum(scales.load((b, h, 1), (1,)), 0) / total
    o.store((b, h, m, 0), acc * weight[:, None])
# fmt: on


def tiles(D: int, *, causal: bool) -> dict[str, int]:
    """Tile sizes for heads of D numbers; measured on an H200."""
    if not 64 < D <= 128:
        return {"BM": 128, "BN": 128}
    return {"BM": 192, "BN": 96} if causal else {"BM": 128, "BN": 192}


@functools.cache
def eighths(device: torch.device | str) -> torch.Tensor:
    """What sums of weights are made with: tiles have up to 256 columns."""
    return torch.full((8, 256), 0.125, device=device).to(torch.float8_e4m3fn)


def fp8_attention(
    q: torch.Tensor, k: torch.Tensor, vt: torch.Tensor, scales: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    """q, k: [B, H, L, D] e4m3; vt: [B, H, D, L] e4m3; scales: [B, H, 2] f32. Result: bf16."""
    B, H, L, D = q.shape
    if scales.shape != (B, H, 2) or vt.shape != (B, H, D, k.shape[2]):
        raise ValueError(
            f"expected scales {[B, H, 2]} and values {[B, H, D, k.shape[2]]}, "
            f"got {[*scales.shape]} and {[*vt.shape]}"
        )
    o = torch.empty(B, H, L, D, device=q.device, dtype=torch.bfloat16)
    sizes = tiles(D, causal=causal)
    kernel = fp8_attention_kernel[tl.cdiv(L, sizes["BM"]), H, B]
    args = (q, k, vt, scales, eighths(q.device), o, D**-0.5, causal, D)
    kernel(*args, **sizes, fast_math=True)
    return o


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x[B, H, ...] in e4m3 and a scale per head."""
    scale = x.abs().amax((2, 3)).clamp(min=1e-12) / 448.0
    return (x / scale[..., None, None]).to(torch.float8_e4m3fn), scale


def inputs(
    shape: tuple[int, int, int, int], device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, vt, scales, and what attention of the quantised tensors gives, in fp64, without a mask.

    Values that are transposed have rows of a multiple of 16 elements.
    """
    x = [torch.randn(shape, device=device) for _ in range(3)]
    (q, sq), (k, sk), (v, sv) = map(quantised, x)
    B, H, L, D = shape
    vt = torch.zeros(B, H, D, -(-L // 16) * 16, device=device, dtype=torch.float8_e4m3fn)[..., :L]
    vt.copy_(v.transpose(2, 3))
    return q, k, vt, torch.stack([sq * sk, sv], 2), v


def run(shape: tuple[int, int, int, int], device: str, *, causal: bool) -> float:
    """Runs on random data; returns the relative error against fp64 of the quantised inputs."""
    q, k, vt, scales, v = inputs(shape, device)
    got = fp8_attention(q, k, vt, scales, causal=causal)
    wide = (q.double() * scales[:, :, 0, None, None].double(), k.double(), v.double())
    want = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    want = want * scales[:, :, 1, None, None].double()
    return ((got.double() - want).norm() / want.norm()).item()


def show_compiled(shape: tuple[int, int, int, int]) -> None:
    """Compiles from shapes alone, writes the CUDA text, prints the plan."""
    B, H, L, D = shape
    q, k = (torch.empty(shape, device="meta", dtype=torch.float8_e4m3fn) for _ in range(2))
    vt = torch.empty(B, H, D, L, device="meta", dtype=torch.float8_e4m3fn)
    scales = torch.empty(B, H, 2, device="meta")
    o = torch.empty(shape, device="meta", dtype=torch.bfloat16)
    args = (q, k, vt, scales, eighths("meta"), o, D**-0.5, True, D)
    sizes = tiles(D, causal=True)
    options = {"grid": (tl.cdiv(L, sizes["BM"]), H, B), "fast_math": True, **sizes}
    OUT.mkdir(exist_ok=True)
    path = OUT / "fp8_attention.cu"
    path.write_text(fp8_attention_kernel.cuda(*args, **options), encoding="utf-8")
    print("\n" + fp8_attention_kernel.report(*args, **options))
    print(f"\nCUDA text: {path}")


def main() -> None:
    """Runs full and causal attention, on the GPU or in the interpreter, then shows the kernel."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (2, 16, 4096, 128)) if on_gpu else ("cpu", (1, 2, 200, 64))
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter, compiling without a launch.")
    for causal in (False, True):
        error = run(shape, device, causal=causal)
        print(f"fp8 attention {list(shape)}, causal {causal}: relative error {error:.1e}")
        if not error < 4e-2:
            raise SystemExit("the result is wrong")
    show_compiled((2, 16, 4096, 128))


if __name__ == "__main__":
    main()
