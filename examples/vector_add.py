"""Adding two vectors: Triton's first tutorial kernel, with its imports swapped.

On a GPU it is timed against a copy: three streams of memory should take 1.5 times a copy's two.
"""

import torch

import tiledsl as triton
import tiledsl.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    """output = x + y, BLOCK_SIZE elements a program."""
    pid = tl.program_id(axis=0)
    offsets = pid * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


def add(x: torch.Tensor, y: torch.Tensor, block_size: int = 4096, **options: int) -> torch.Tensor:
    """The sum of two vectors. options: of the launch."""
    output = torch.empty_like(x)
    n_elements = output.numel()
    add_kernel[lambda meta: (triton.cdiv(n_elements, meta["BLOCK_SIZE"]),)](
        x, y, output, n_elements, BLOCK_SIZE=block_size, **options
    )
    return output


def milliseconds(run) -> float:
    """Median time of a function on the GPU."""
    times = []
    for _ in range(25):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[5:])[10]


def main() -> None:
    """Checks the sum, on the GPU or in the interpreter, and times it where there is a GPU."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device, n = ("cuda", 98_432_000) if on_gpu else ("cpu", 9_843)
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter.")
    x, y = torch.rand(n, device=device), torch.rand(n, device=device)
    error = ((add(x, y) - (x + y)).norm() / n**0.5).item()
    print(f"vector_add of {n} elements: relative error {error:.1e}")
    if error != 0:
        raise SystemExit("the result is wrong")
    if on_gpu:
        ours, copy = milliseconds(lambda: add(x, y)), milliseconds(x.clone)
        print(
            f"{ours:.3f} ms, {12e-6 * n / ours:.0f} GB/s, {1.5 * copy / ours:.3f} of a copy's rate"
        )


if __name__ == "__main__":
    main()
