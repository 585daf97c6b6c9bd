"""Sums: of a whole tensor in two steps, and of groups of rows of different lengths.

The order of additions is fixed, so that every run gives the same bits.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def partial_sums(x_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    """parts[p] = the sum of the blocks p, p + P, p + 2 P, ... of x."""
    pid, step = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(pid * BLOCK, n, step * BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(parts_ptr + pid, tl.sum(total, axis=0))


@triton.jit
def add_parts(parts_ptr, out_ptr, n_parts, BLOCK: tl.constexpr):
    """out[0] = the sum of the parts."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(parts_ptr + at, mask=at < n_parts, other=0.0), axis=0))


def total(x: torch.Tensor, block: int = 8192, **options: int) -> torch.Tensor:
    """The sum of all elements, in fp32. options: of the launch."""
    x = x.contiguous()
    n = x.numel()
    most = 3
    if x.device.type == "cuda":
        most = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = max(1, min(most, triton.cdiv(n, block)))
    parts = torch.empty(programs, device=x.device, dtype=torch.float32)
    out = torch.empty((), device=x.device, dtype=torch.float32)
    partial_sums[(programs,)](x, parts, n, BLOCK=block, **options)
    add_parts[(1,)](parts, out, programs, BLOCK=1024)
    return out


@triton.jit
def group_sums(x_ptr, starts_ptr, out_ptr, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out[g, :] = the sum of rows starts[g] .. starts[g + 1] - 1 of x, BLOCK columns."""
    group = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    begin, end = tl.load(starts_ptr + group), tl.load(starts_ptr + group + 1)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(begin, end, ROWS):
        rows = first + tl.arange(0, ROWS)[:, None]
        mask = (rows < end) & (cols < n_cols)
        total += tl.load(x_ptr + rows * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    out = tl.sum(total, axis=0, keep_dims=True)
    tl.store(out_ptr + group * n_cols + cols, out, mask=cols < n_cols)


def grouped_sum(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Sums of groups of rows of x [R, N]; group g has the rows from starts[g] to starts[g + 1]."""
    x = x.contiguous()
    n_cols, groups = x.shape[1], len(starts) - 1
    out = torch.empty((groups, n_cols), device=x.device, dtype=x.dtype)
    BLOCK = min(128, triton.next_power_of_2(n_cols))
    group_sums[(groups, triton.cdiv(n_cols, BLOCK))](x, starts, out, n_cols, ROWS=32, BLOCK=BLOCK)
    return out


def run(n_rows: int, n_cols: int, groups: int, device: str, dtype: torch.dtype) -> float:
    """The larger relative error of both sums against fp64 on random data."""
    x = torch.randn(n_rows, n_cols, device=device, dtype=dtype)
    inner = torch.randint(0, n_rows + 1, (groups - 1,), device=device).sort().values
    starts = torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), n_rows))).int()
    of_row = torch.repeat_interleave(torch.arange(groups, device=device), starts.diff().long())
    want = torch.zeros(groups, n_cols, device=device, dtype=torch.float64)
    want.index_add_(0, of_row, x.double())
    error = ((grouped_sum(x, starts).double() - want).norm() / want.norm()).item()
    scale = x.double().abs().sum()
    return max(error, ((total(x).double() - x.double().sum()).abs() / scale).item())


def main() -> None:
    """Checks both sums, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (65536, 2000, 100)) if on_gpu else ("cpu", (50, 300, 4))
    error = run(*shape, device, torch.float32)
    print(f"sums of {shape[0]} x {shape[1]}: relative error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
