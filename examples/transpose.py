"""Transposing a matrix: tiles are read and written along rows, so that both sides are coalesced."""

import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def transpose_kernel(x: tl.Tensor, y: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    """y[N, M] = the transpose of x[M, N]."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    y.store((n, m), tl.trans(x.load((m, n), (BM, BN))))


def transpose(x: torch.Tensor, BM: int = 0, BN: int = 0) -> torch.Tensor:
    """A contiguous transpose of a matrix, by tiles of rows of 256 bytes unless said otherwise."""
    M, N = x.shape
    size = x.element_size()
    BM, BN = BM or 256 // size, BN or 256 // size
    y = torch.empty((N, M), device=x.device, dtype=x.dtype)
    transpose_kernel[(tl.cdiv(M, BM), tl.cdiv(N, BN))](x, y, BM, BN)
    return y


def main() -> None:
    """Checks a transposition, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, shape = ("cuda", (8192, 5000)) if on_gpu else ("cpu", (70, 130))
    x = torch.randn(shape, device=device)
    error = ((transpose(x) - x.t()).norm() / x.norm()).item()
    print(f"transpose of {shape[0]} x {shape[1]}: relative error {error:.1e}")
    if error != 0:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
