"""Histogram of integers: a program counts its blocks in shared memory, then adds to the result."""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def histogram_kernel(x_ptr, counts_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """counts[b] += how often b occurs in the blocks of a program; others do not count."""
    pid, step = tl.program_id(0), tl.num_programs(0)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(pid * BLOCK, n, step * BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < n, other=-1)
        counts += tl.histogram(x, BINS, mask=(x >= 0) & (x < BINS))
    tl.atomic_add(counts_ptr + tl.arange(0, BINS), counts)


def histogram(x: torch.Tensor, bins: int) -> torch.Tensor:
    """How often each of 0 .. bins - 1 occurs; bins is a power of two."""
    x = x.contiguous()
    n = x.numel()
    counts = torch.zeros(bins, device=x.device, dtype=torch.int32)
    most = 3
    if x.device.type == "cuda":
        most = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
    histogram_kernel[(max(1, min(most, triton.cdiv(n, 4096))),)](x, counts, n, bins, BLOCK=4096)
    return counts


def main() -> None:
    """Checks a histogram, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, n = ("cuda", 1 << 26) if on_gpu else ("cpu", 54321)
    x = torch.randint(-3, 260, (n,), device=device, dtype=torch.int32)
    want = torch.bincount(x[(x >= 0) & (x < 256)].long(), minlength=256)
    error = ((histogram(x, 256) - want).double().norm() / want.double().norm()).item()
    print(f"histogram of {n} integers: relative error {error:.1e}")
    if error != 0:
        raise SystemExit("the result is wrong")


if __name__ == "__main__":
    main()
