"""Dropout whose mask is never stored: the backward pass draws the same numbers from the same seed.

Each call of the generator gives four numbers, which four neighbours share.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def seeded_dropout(x_ptr, output_ptr, n_elements, limit, scale, seed, BLOCK: tl.constexpr):
    """output = x * scale where a random number of 32 bits exceeds the limit, else 0."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n_elements)
    calls = block * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.randint4x(seed, calls)
    words = tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK)
    output = tl.where(words > limit.to(tl.uint32), x * scale, 0.0)
    tl.store(output_ptr + at, output, mask=at < n_elements)


def drop(x: torch.Tensor, p: float, seed: int, **options: int) -> torch.Tensor:
    """One launch over all elements. options: of the launch."""
    output = torch.empty_like(x)
    n = x.numel()
    limit, scale = round(p * (2**32 - 1)), 1 / (1 - p) if p < 1 else 0.0
    grid = (triton.cdiv(n, 2048),)
    seeded_dropout[grid](x, output, n, limit, scale, seed, BLOCK=2048, **options)
    return output


class Dropout(torch.autograd.Function):
    """Forward and backward are the same kernel."""

    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        return drop(x.contiguous(), p, seed)

    @staticmethod
    def backward(ctx, dy):
        return drop(dy.contiguous(), ctx.p, ctx.seed), None, None


def dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """x with a share p of its elements 0 and the others scaled by 1 / (1 - p)."""
    return Dropout.apply(x, p, seed)


def run(shape: tuple[int, ...], device: str, dtype: torch.dtype, p: float = 0.3) -> float:
    """Relative error of what was kept, or 1 where something else is wrong."""
    x = (torch.rand(shape, device=device) + 1).to(dtype).requires_grad_()
    y = dropout(x, p, 42)
    kept = y != 0
    want = x.detach().double() / (1 - p) * kept
    y.backward(torch.ones_like(y))
    n = x.numel()
    share = abs(kept.float().mean().item() - (1 - p))
    if share > 5 * (p * (1 - p) / n) ** 0.5 or not torch.equal(x.grad != 0, kept):
        return 1.0
    return ((y.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def main() -> None:
    """Checks what is kept, on the GPU or in the interpreter."""
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (1 << 24,)) if on_gpu else ("cpu", (4321,))
    error = run(shape, device, torch.float32)
    print(f"dropout of {shape[0]} elements: relative error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
