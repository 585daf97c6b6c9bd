"""Softmax of the rows of a matrix, in the style of Triton's tutorial: pointers, masks, one pass.

A program holds its rows in registers: each element is read once and written once. Several short
rows go to one program; a long row is shared out over the threads of a cluster by the compiler.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def softmax_kernel(
    y_ptr, x_ptr, y_stride, x_stride, n_rows, n_cols, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """y[r, :] = softmax(x[r, :]) for ROWS rows; BLOCK is at least n_cols."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n_cols)
    x = tl.load(x_ptr + rows * x_stride + cols, mask=mask, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = numerator / tl.sum(numerator, axis=1, keep_dims=True)
    tl.store(y_ptr + rows * y_stride + cols, y, mask=mask)


def rows_per_program(n_cols: int) -> int:
    """So many rows that a program has some thousand elements."""
    return max(1, 4096 // triton.next_power_of_2(n_cols))


def softmax(x: torch.Tensor, **options: int) -> torch.Tensor:
    """Softmax over the last dimension. options: of the launch."""
    n_cols = x.shape[-1]
    rows = x.reshape(-1, n_cols)
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    y = torch.empty_like(rows, memory_format=torch.contiguous_format)
    ROWS = rows_per_program(n_cols)
    softmax_kernel[(triton.cdiv(len(rows), ROWS),)](
        y, rows, y.stride(0), rows.stride(0), len(rows), n_cols,
        ROWS=ROWS, BLOCK=triton.next_power_of_2(n_cols), **options,
    )  # fmt: skip
    return y.view(x.shape)


def main() -> None:
    """Checks a softmax with an odd width, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    x = torch.randn(1823 if on_gpu else 5, 781, device="cuda" if on_gpu else "cpu")
    want = x.double().softmax(-1)
    error = ((softmax(x).double() - want).norm() / want.norm()).item()
    print(f"softmax of {' x '.join(map(str, x.shape))}: relative error {error:.1e}")
    if not error < 1e-6:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
