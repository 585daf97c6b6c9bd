"""Dropout whose mask is never stored: Triton's tutorial kernel, with its imports swapped.

The backward pass draws the same random numbers from the same seed.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    """output = x / (1 - p) where a random number exceeds p, else 0."""
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    random = tl.rand(seed, offsets)
    x_keep = random > p
    output = tl.where(x_keep, x / (1 - p), 0.0)
    tl.store(output_ptr + offsets, output, mask=mask)


def drop(x: torch.Tensor, p: float, seed: int, **options: int) -> torch.Tensor:
    """One launch over all elements. options: of the launch."""
    output = torch.empty_like(x)
    n = x.numel()
    grid = (triton.cdiv(n, 1024),)
    seeded_dropout[grid](x, output, n, p, seed, BLOCK_SIZE=1024, **options)
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
