"""RMSNorm and LayerNorm with their gradients, in the style of Triton's tutorial: one pass each.

Forward: a program normalises its rows in registers. Backward: a program walks over rows, writes
their gradients, and adds up its part of those of weight and bias; a second kernel sums the parts.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def norm_forward(
    x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, x_stride, n_rows, n_cols, eps,
    CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * w + b; without CENTRED mean and b are 0."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    inside = cols < n_cols
    mask = (rows < n_rows) & inside
    x = tl.load(x_ptr + rows * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        mean = tl.sum(x, axis=1, keep_dims=True) / n_cols
        tl.store(mean_ptr + rows, mean, mask=rows < n_rows)
        x = tl.where(inside, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / n_cols + eps)
    tl.store(rstd_ptr + rows, rstd, mask=rows < n_rows)
    y = x * rstd * tl.load(w_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        y += tl.load(b_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + rows * n_cols + cols, y, mask=mask)


@triton.jit
def norm_backward(
    dx_ptr, dy_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, dw_ptr, db_ptr,
    x_stride, dy_stride, n_rows, n_cols, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of rows pid, pid + P, ...; row pid of dw and db is the part of program pid."""
    pid, step = tl.program_id(0), tl.num_programs(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < n_cols
    w = tl.load(w_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(pid, n_rows, step):
        x = tl.load(x_ptr + row * x_stride + cols, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_stride + cols, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        if CENTRED:
            x = x - tl.load(mean_ptr + row)
            db += dy
        normal = x * rstd
        dw += dy * normal
        g = dy * w
        along = normal * (tl.sum(g * normal, axis=0) / n_cols * rstd)
        if CENTRED:
            along += tl.sum(g, axis=0) / n_cols * rstd
        tl.store(dx_ptr + row * n_cols + cols, g * rstd - along, mask=inside)
    tl.store(dw_ptr + pid * n_cols + cols, dw, mask=inside)
    if CENTRED:
        tl.store(db_ptr + pid * n_cols + cols, db, mask=inside)


@triton.jit
def sum_parts(out_ptr, parts_ptr, n_parts, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[k, c] = the sum of column c of the k-th parts."""
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    parts_ptr += tl.program_id(1).to(tl.int64) * n_parts * n_cols
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, n_parts, ROWS):
        rows = first + tl.arange(0, ROWS)[:, None]
        at = parts_ptr + rows * n_cols + cols
        total += tl.load(at, mask=(rows < n_parts) & (cols < n_cols), other=0.0)
    out = tl.sum(total, axis=0, keep_dims=True)
    tl.store(out_ptr + tl.program_id(1) * n_cols + cols, out, mask=cols < n_cols)


def rows_per_program(n_cols: int, itemsize: int) -> int:
    """About 8 KB of rows; of short ones 4096 elements, or 16 KB where they fill their tile."""
    BLOCK = triton.next_power_of_2(n_cols)
    if BLOCK * itemsize > 2048:
        return triton.next_power_of_2(triton.cdiv(7680, n_cols * itemsize))
    return (16384 // itemsize if n_cols == BLOCK else 4096) // BLOCK


def forward(x, weight, bias, eps, **options):
    """(y, mean, rstd) of the rows of x; bias None is RMSNorm. options: of the launch."""
    n_rows, n_cols = x.shape
    y = torch.empty((n_rows, n_cols), device=x.device, dtype=x.dtype)
    rstd = torch.empty(n_rows, device=x.device, dtype=torch.float32)
    mean = rstd if bias is None else torch.empty_like(rstd)
    BLOCK = triton.next_power_of_2(n_cols)
    ROWS = rows_per_program(n_cols, x.element_size())
    norm_forward[(triton.cdiv(n_rows, ROWS),)](
        x, y, weight, weight if bias is None else bias, mean, rstd, x.stride(0), n_rows, n_cols,
        eps, CENTRED=bias is not None, ROWS=ROWS, BLOCK=BLOCK, **options,
    )  # fmt: skip
    return y, mean, rstd


def backward(dy, x, weight, mean, rstd, *, centred, **options):
    """(dx, dw, db) of the rows of x; db is None unless centred. options: of the launch."""
    n_rows, n_cols = x.shape
    dx = torch.empty((n_rows, n_cols), device=x.device, dtype=x.dtype)
    programs = programs_for(x)
    kinds = 1 + centred
    parts = torch.empty((kinds, programs, n_cols), device=x.device, dtype=torch.float32)
    norm_backward[(programs,)](
        dx, dy, x, weight, mean, rstd, parts[0], parts[-1], x.stride(0), dy.stride(0),
        n_rows, n_cols, CENTRED=centred, BLOCK=triton.next_power_of_2(n_cols), **options,
    )  # fmt: skip
    sums = torch.empty((kinds, n_cols), device=x.device, dtype=weight.dtype)
    ROWS = min(1024, triton.next_power_of_2(max(1, programs * 15 // 16)))
    BLOCK = max(16, 8192 // ROWS)
    sum_parts[(triton.cdiv(n_cols, BLOCK), kinds)](
        sums, parts, programs, n_cols, ROWS=ROWS, BLOCK=BLOCK, num_warps=ROWS * BLOCK // 1024
    )
    return dx, sums[0], sums[1] if centred else None


def programs_for(x: torch.Tensor) -> int:
    """Programs that walk over the rows: as many as run at once, with as many rows each.

    An SM has 16 KB of a row, or several shorter rows; clusters that share one do not fill all SMs.
    """
    n_rows, n_cols = x.shape
    if x.device.type != "cuda":
        return min(n_rows, 3)
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    BLOCK = triton.next_power_of_2(n_cols)
    columns = 8192 if BLOCK < 4096 else 16384 // x.element_size()
    if 2 * columns < BLOCK:
        sms = sms * 10 // 11
    resident = max(1, min(8 * sms, sms * columns // BLOCK))
    return triton.cdiv(n_rows, triton.cdiv(n_rows, resident))


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """The rows of the last dimension, neighbours side by side."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


class Norm(torch.autograd.Function):
    """LayerNorm, or RMSNorm where there is no bias."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        rows = as_rows(x)
        y, mean, rstd = forward(rows, weight, bias, eps)
        ctx.save_for_backward(rows, weight, mean, rstd)
        ctx.centred = bias is not None
        return y.view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        dx, dw, db = backward(as_rows(dy), *ctx.saved_tensors, centred=ctx.centred)
        return dx.view(dy.shape), dw, db, None


def layer_norm(x, weight, bias, eps: float = 1e-5):
    """LayerNorm over the last dimension."""
    return Norm.apply(x, weight, bias, eps)


def rms_norm(x, weight, eps: float = 1e-6):
    """RMSNorm over the last dimension."""
    return Norm.apply(x, weight, None, eps)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted."""
    return ((got.double() - want).norm() / want.norm()).item()


def run(n_rows: int, n_cols: int, device: str, dtype: torch.dtype, *, centred: bool) -> float:
    """The largest relative error of result and gradients against fp64 on random data."""
    x = torch.randn(n_rows, n_cols, device=device, dtype=dtype)
    w, b = (torch.randn(n_cols, device=device, dtype=dtype) for _ in range(2))
    dy = torch.randn_like(x)
    params = [t.requires_grad_() for t in ((x, w, b) if centred else (x, w))]
    exact = [t.detach().double().requires_grad_() for t in params]
    norm = torch.nn.functional.layer_norm if centred else torch.nn.functional.rms_norm
    y = (layer_norm if centred else rms_norm)(*params, eps=1e-5)
    want = norm(exact[0], (n_cols,), *exact[1:], eps=1e-5)
    y.backward(dy)
    want.backward(dy.double())
    errors = [relative_error(y, want)]
    errors += [
        relative_error(p.grad, e.grad) for p, e in zip(params, exact, strict=True) if e.grad.norm()
    ]
    return max(errors)


def main() -> None:
    """Checks both norms and their gradients, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, n_rows = ("cuda", 2048) if on_gpu else ("cpu", 5)
    for centred in (False, True):
        error = run(n_rows, 1000, device, torch.float32, centred=centred)
        print(f"{'LayerNorm' if centred else 'RMSNorm'}, gradients: relative error {error:.1e}")
        if not error < 1e-5:
            raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
