"""Rotary position embedding: pairs of elements of each head turn by an angle of the position.

The gradient turns back. Written with tensor parameters: a tile has one token and all heads.
"""

import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def rope_kernel(
    x: tl.Tensor, cos: tl.Tensor, sin: tl.Tensor, y: tl.Tensor, BACK: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """y[b, l] = x[b, l] turned by the angles of position l; x and y are [B, L, H, 2 * HALF]."""
    at, batch = tl.program_id(0), tl.program_id(1)
    first = x.load((batch, at, 0, 0), (1, 1, HEADS, HALF)).to(tl.float32)
    second = x.load((batch, at, 0, HALF), (1, 1, HEADS, HALF)).to(tl.float32)
    c = cos.load((at, 0), (1, HALF)).to(tl.float32).reshape((1, 1, 1, HALF))
    s = sin.load((at, 0), (1, HALF)).to(tl.float32).reshape((1, 1, 1, HALF))
    if BACK:
        s = -s
    y.store((batch, at, 0, 0), first * c - second * s)
    y.store((batch, at, 0, HALF), second * c + first * s)


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, back: bool) -> torch.Tensor:
    """x [B, L, H, D] turned; any strides."""
    B, L, H, D = x.shape
    y = torch.empty((B, L, H, D), device=x.device, dtype=x.dtype)
    rope_kernel[(L, B)](x, cos, sin, y, BACK=back, HEADS=H, HALF=D // 2, num_warps=2)
    return y


class Rope(torch.autograd.Function):
    """The turn; its gradient is the turn back."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin, back=False)

    @staticmethod
    def backward(ctx, dy):
        return turn(dy, *ctx.saved_tensors, back=True), None, None


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, L, H, D] with its halves turned; cos and sin are [L, D / 2]."""
    return Rope.apply(x, cos, sin)


def angles(length: int, dim: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of position times frequency."""
    frequency = 10000.0 ** (-torch.arange(0, dim, 2, device=device).double() / dim)
    angle = torch.outer(torch.arange(length, device=device).double(), frequency)
    return angle.cos().float(), angle.sin().float()


def reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The same in torch."""
    first, second = x.chunk(2, -1)
    c, s = (t.to(x.dtype)[None, :, None] for t in (cos, sin))
    return torch.cat((first * c - second * s, second * c + first * s), -1)


def run(shape: tuple[int, int, int, int], device: str, dtype: torch.dtype) -> float:
    """The larger relative error of result and gradient against fp64 on random data."""
    x = torch.randn(shape, device=device, dtype=dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    cos, sin = angles(shape[1], shape[3], device)
    dy = torch.randn_like(x)
    y, want = rope(x, cos, sin), reference(exact, cos, sin)
    y.backward(dy)
    want.backward(dy.double())
    pairs = ((y, want), (x.grad, exact.grad))
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in pairs)


def main() -> None:
    """Checks result and gradient, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4, 4096, 16, 128)) if on_gpu else ("cpu", (2, 5, 4, 32))
    error = run(shape, device, torch.float32)
    print(f"rope of {' x '.join(map(str, shape))}: relative error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
