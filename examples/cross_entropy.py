"""Cross entropy of logits and targets with its gradient: logits are read once in each direction.

A program walks over a row of any width in blocks of PARTS x LANES x VECTOR and keeps for each lane,
which has a vector of each part, a running maximum and a running sum, as powers of two; they meet at
the end of the row.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl

IGNORED = -100
LONG_BYTES = 96 * 1024


@triton.jit
def cross_entropy_forward(
    x_ptr, target_ptr, loss_ptr, lse_ptr, x_stride, n_cols,
    IGNORED: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """loss[r] = log(sum(exp(x[r, :]))) - x[r, target[r]]; 0 where the target is IGNORED."""
    row = tl.program_id(0)
    first = x_ptr + row * x_stride
    LOG2E: tl.constexpr = 1.4426950408889634
    WIDTH: tl.constexpr = LANES * VECTOR
    part = tl.arange(0, PARTS)[:, None, None] * WIDTH
    lane = tl.arange(0, LANES)[None, :, None] * VECTOR
    places = part + lane + tl.arange(0, VECTOR)[None, None, :]
    top = tl.full((LANES,), -float("inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    for start in range(0, n_cols, PARTS * WIDTH):
        cols = start + places
        x = tl.load(first + cols, mask=cols < n_cols, other=-float("inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(tl.max(x, axis=2), axis=0) * LOG2E)
        # Lanes that have seen nothing but -inf stay at 2 ** -inf = 0.
        base = tl.where(new == -float("inf"), 0.0, new)
        powers = tl.exp2(x * LOG2E - base[None, :, None])
        total = total * tl.exp2(top - base) + tl.sum(tl.sum(powers, axis=2), axis=0)
        top = new
    highest = tl.max(top, axis=0)
    lse = (highest + tl.log2(tl.sum(total * tl.exp2(top - highest), axis=0))) / LOG2E
    target = tl.load(target_ptr + row)
    tl.store(lse_ptr + row, lse)
    if target == IGNORED:
        tl.store(loss_ptr + row, 0.0)
    else:
        tl.store(loss_ptr + row, lse - tl.load(first + target).to(tl.float32))


@triton.jit
def cross_entropy_backward(
    dx_ptr, x_ptr, target_ptr, lse_ptr, dloss_ptr, x_stride, n_cols,
    IGNORED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = (softmax(x) - onehot(target)) * dloss, BLOCK columns of a row."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < n_cols
    target = tl.load(target_ptr + row).to(tl.int32)
    lse = tl.load(lse_ptr + row)
    dloss = tl.load(dloss_ptr + row)
    scale = tl.where(target == IGNORED, 0.0, dloss)
    x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
    dx = (tl.exp(x - lse) - tl.where(cols == target, 1.0, 0.0)) * scale
    tl.store(dx_ptr + row * n_cols + cols, dx, mask=inside)


def forward(x: torch.Tensor, target: torch.Tensor, **options: int):
    """(loss, log-sum-exp) of each row. options: of the launch.

    Sums do not miss exponentials below 2**-126, which `fast_math` takes for 0.
    """
    n_rows, n_cols = x.shape
    options = {"fast_math": True, **options}
    loss, lse = (torch.empty(n_rows, device=x.device, dtype=torch.float32) for _ in range(2))
    # Few long rows need more bytes of each on their way.
    lanes = 256 if n_cols * x.element_size() > LONG_BYTES else 128
    cross_entropy_forward[(n_rows,)](
        x, target, loss, lse, x.stride(0), n_cols, IGNORED=IGNORED,
        PARTS=4 if n_cols > 2048 else 1, LANES=lanes, VECTOR=16 // x.element_size(),
        **{"num_warps": lanes // 32, **options},
    )  # fmt: skip
    return loss, lse


def backward(x, target, lse, dloss, **options):
    """The gradient of the logits for a gradient of each row's loss. options: of the launch."""
    n_rows, n_cols = x.shape
    options = {"fast_math": True, **options}
    dx = torch.empty((n_rows, n_cols), device=x.device, dtype=x.dtype)
    BLOCK = min(2048, triton.next_power_of_2(n_cols))
    cross_entropy_backward[(n_rows, triton.cdiv(n_cols, BLOCK))](
        dx, x, target, lse, dloss, x.stride(0), n_cols, IGNORED=IGNORED, BLOCK=BLOCK, **options
    )
    return dx


class CrossEntropy(torch.autograd.Function):
    """The loss of each row."""

    @staticmethod
    def forward(ctx, x, target):
        x = x if x.stride(1) == 1 else x.contiguous()
        loss, lse = forward(x, target)
        ctx.save_for_backward(x, target, lse)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        return backward(*ctx.saved_tensors, dloss.contiguous()), None


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean loss of logits [N, V] for targets [N]; targets of -100 do not count."""
    return CrossEntropy.apply(x, target).sum() / (target != IGNORED).sum()


def run(n_rows: int, n_cols: int, device: str, dtype: torch.dtype) -> float:
    """The larger relative error of loss and gradient against fp64 on random data."""
    x = torch.randn(n_rows, n_cols, device=device, dtype=dtype).requires_grad_()
    target = torch.randint(0, n_cols, (n_rows,), device=device)
    target[: n_rows // 2] = IGNORED
    exact = x.detach().double().requires_grad_()
    loss = cross_entropy(x, target)
    want = torch.nn.functional.cross_entropy(exact, target)
    loss.backward()
    want.backward()
    error = abs(loss.item() - want.item()) / max(1e-6, abs(want.item()))
    norm = exact.grad.norm()
    slope = ((x.grad.double() - exact.grad).norm() / norm).item() if norm else 0.0
    return max(error, slope)


def main() -> None:
    """Checks loss and gradient, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (1024, 50257)) if on_gpu else ("cpu", (4, 5000))
    error = run(*shape, device, torch.float32)
    print(f"cross entropy of {shape[0]} x {shape[1]}: relative error {error:.1e}")
    if not error < 1e-5:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
