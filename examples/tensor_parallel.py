"""A layer split over GPUs: `python examples/tensor_parallel.py [--ranks 2]`, or under torchrun.

y = relu(x @ W1) @ W2. Each rank holds columns of W1 and the same rows of W2, computes its part of
the sum without talking to the others, and an all-reduce adds the parts. One process per GPU, joined
by torch.distributed: NCCL where there are enough GPUs, otherwise gloo and the interpreter. The
slices are views of the whole weights: kernels take tensors with any strides.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tiledsl
import tiledsl.language as tl

ERROR = 8e-3


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, RELU: tl.constexpr,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """C = A @ B, with RELU max(A @ B, 0)."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    if RELU:
        acc = tl.maximum(acc, 0.0)
    c.store((m, n), acc)
# fmt: on


def multiply(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, *, relu: bool) -> torch.Tensor:
    """The product on the device of the operands, whatever device is current."""
    c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=dtype)
    matmul[lambda meta: (tl.cdiv(c.shape[0], meta["BM"]), tl.cdiv(c.shape[1], meta["BN"]))](
        a, b, c, RELU=relu
    )
    return c


def shard(extent: int, rank: int, ranks: int) -> slice:
    """The part of a dimension that a rank holds."""
    size = -(-extent // ranks)
    return slice(rank * size, min(extent, (rank + 1) * size))


def layer(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    """The layer of this rank's columns of w1 and rows of w2, summed over all ranks."""
    hidden = multiply(x, w1, x.dtype, relu=True)
    part = multiply(hidden, w2, torch.float32, relu=False)
    dist.all_reduce(part)
    return part


def check_rank(m: int, k: int, hidden: int, device: torch.device) -> float:
    """Runs the layer on this rank; returns its relative error against fp64 of the whole layer."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(0)  # the same weights everywhere
    x, w1, w2 = (
        (torch.randn(*s, generator=generator) * s[0] ** -0.5).to(device, torch.bfloat16)
        for s in ((m, k), (k, hidden), (hidden, k))
    )
    mine = shard(hidden, rank, ranks)
    got = layer(x, w1[:, mine], w2[mine])
    assert got.device == device
    want = (x.double() @ w1.double()).relu() @ w2.double()
    return ((got.double() - want).norm() / want.norm()).item()


def run_rank(rank: int, ranks: int, meeting: str, shape: tuple[int, int, int]) -> None:
    """One process: joins the others, runs, and fails where the result is wrong."""
    on_gpu = enough_gpus(ranks)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", meeting, rank=rank, world_size=ranks)
    error = check_rank(*shape, device)
    print(f"rank {rank} of {ranks} on {device}: relative error {error:.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if not error < ERROR:
        raise SystemExit("the result is wrong")


def enough_gpus(ranks: int) -> bool:
    """Whether each rank has a Hopper GPU of its own."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return count >= ranks and all(
        torch.cuda.get_device_capability(at)[0] == 9 for at in range(ranks)
    )


def main() -> None:
    """Starts the ranks, or is one of torchrun's."""
    parser = argparse.ArgumentParser(description="A tensor-parallel layer.")
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    if "RANK" in os.environ:
        ranks = int(os.environ["WORLD_SIZE"])
    shape = (4096, 4096, 14336) if enough_gpus(ranks) else (40, 72, 136)
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), ranks, "env://", shape)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        mp.spawn(run_rank, (ranks, meeting, shape), nprocs=ranks)


if __name__ == "__main__":
    main()
