"""The k largest elements of each row with their places, largest first.

A value and its column are packed into one integer that compares as the value does, so that one
`tl.topk` finds both. Of equal values the one further left comes first.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def ordered(bits):
    """Bits of a float as an integer that compares as the float does; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def top_k_kernel(
    x_ptr, values_ptr, places_ptr, x_stride, n_cols, K: tl.constexpr, BLOCK: tl.constexpr
):
    """The K largest elements of a row; BLOCK is at least n_cols, K a power of two."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + cols, mask=cols < n_cols, other=-float("inf"))
    key = ordered(x.to(tl.float32).to(tl.int32, bitcast=True)).to(tl.int64)
    found = tl.topk((key << 32) | (BLOCK - 1 - cols).to(tl.int64), K)
    values = ordered((found >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    places = BLOCK - 1 - (found & 0xFFFFFFFF).to(tl.int32)
    at = row * K + tl.arange(0, K)
    tl.store(values_ptr + at, values)
    tl.store(places_ptr + at, places)


def top_k(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(values, columns) of the k largest elements of the rows of a matrix; k is a power of two."""
    x = x if x.stride(1) == 1 else x.contiguous()
    n_rows, n_cols = x.shape
    values = torch.empty((n_rows, k), device=x.device, dtype=x.dtype)
    places = torch.empty((n_rows, k), device=x.device, dtype=torch.int64)
    BLOCK = max(k, triton.next_power_of_2(n_cols))
    warps = min(4, max(1, BLOCK // 1024))  # Lanes that find more of a row compare less.
    top_k_kernel[(n_rows,)](
        x, values, places, x.stride(0), n_cols, k, BLOCK, num_warps=warps
    )  # fmt: skip
    return values, places


def run(n_rows: int, n_cols: int, k: int, device: str, dtype: torch.dtype) -> float:
    """Relative error of the values; 1 where the places do not lead to them."""
    x = torch.randn(n_rows, n_cols, device=device, dtype=dtype)
    values, places = top_k(x, k)
    want = x.double().topk(k).values
    if not torch.equal(x.gather(1, places), values):
        return 1.0
    return ((values.double() - want).norm() / want.norm()).item()


def main() -> None:
    """Checks values and places, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (4096, 1000, 8)) if on_gpu else ("cpu", (5, 1000, 8))
    error = run(*shape, device, torch.float32)
    print(f"top {shape[2]} of {shape[0]} x {shape[1]}: relative error {error:.1e}")
    if error != 0:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
