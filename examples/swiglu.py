"""SwiGLU: silu(a) * b, and its gradient, each in one pass over memory."""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def swiglu_forward(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y = silu(a) * b."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + at, mask=at < n).to(tl.float32)
    b = tl.load(b_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, a * tl.sigmoid(a) * b, mask=at < n)


@triton.jit
def swiglu_backward(dy_ptr, a_ptr, b_ptr, da_ptr, db_ptr, n, BLOCK: tl.constexpr):
    """Gradients of a and b; the sigmoid is computed again rather than kept in memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dy = tl.load(dy_ptr + at, mask=at < n).to(tl.float32)
    a = tl.load(a_ptr + at, mask=at < n).to(tl.float32)
    b = tl.load(b_ptr + at, mask=at < n).to(tl.float32)
    s = tl.sigmoid(a)
    tl.store(da_ptr + at, dy * b * s * (1.0 + a * (1.0 - s)), mask=at < n)
    tl.store(db_ptr + at, dy * a * s, mask=at < n)


def grid(n: int):
    """One program per block."""
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def forward(a: torch.Tensor, b: torch.Tensor, **options: int) -> torch.Tensor:
    """silu(a) * b of contiguous tensors. options: of the launch."""
    y = torch.empty_like(a)
    swiglu_forward[grid(a.numel())](a, b, y, a.numel(), BLOCK=2048, **options)
    return y


class SwiGLU(torch.autograd.Function):
    """silu(a) * b."""

    @staticmethod
    def forward(ctx, a, b):
        a, b = a.contiguous(), b.contiguous()
        ctx.save_for_backward(a, b)
        return forward(a, b)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        da, db = torch.empty_like(a), torch.empty_like(b)
        n = a.numel()
        swiglu_backward[grid(n)](dy.contiguous(), a, b, da, db, n, BLOCK=2048)
        return da, db


def swiglu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """silu(a) * b, elementwise."""
    return SwiGLU.apply(a, b)


def run(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> float:
    """The largest relative error of result and gradients against fp64 on random data."""
    a, b = (torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(2))
    exact = [t.detach().double().requires_grad_() for t in (a, b)]
    dy = torch.randn_like(a)
    y, want = swiglu(a, b), torch.nn.functional.silu(exact[0]) * exact[1]
    y.backward(dy)
    want.backward(dy.double())
    pairs = ((y, want), (a.grad, exact[0].grad), (b.grad, exact[1].grad))
    return max(((p.double() - q).norm() / q.norm()).item() for p, q in pairs)


def main() -> None:
    """Checks result and gradients, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 14336)) if on_gpu else ("cpu", (5, 781))
    error = run(shape, device, torch.float32)
    print(f"SwiGLU of {' x '.join(map(str, shape))}, gradients: relative error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
