"""Operands loaded under an if: copied where they are loaded, for each of several dots."""

from __future__ import annotations

import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.pointer_kernels import seeded
from tiledsl import simulator
from tiledsl.compiled import Kernel

PLACED = "through cp.async where it is loaded"


# fmt: off
@triton.jit
def chosen_blocks(x, k, v, chosen, out, n, KIND: tl.constexpr, M: tl.constexpr, D: tl.constexpr,
                  BS: tl.constexpr):
    """Adds up x @ k.T @ v of the chosen blocks; of others x @ v.T @ k, or nothing."""
    rows, cols, at = tl.arange(0, M), tl.arange(0, D), tl.arange(0, BS)
    left = tl.load(x + rows[:, None] * D + cols[None, :])
    acc = tl.zeros((M, D), tl.float32)
    for i in range(n):
        block = tl.load(chosen + i)
        places = (block * BS + at)[:, None] * D + cols[None, :]
        if block >= 0:
            key, value = tl.load(k + places), tl.load(v + places)
            s = tl.dot(left, key.T)
            if KIND == "twice":
                s += tl.dot(left, value.T)
            if KIND == "added":
                value += 1
            acc = tl.dot(s.to(tl.float16), value, acc)
        elif KIND == "both":
            places = (at - block * BS)[:, None] * D + cols[None, :]
            other = tl.load(v + places, mask=(at < BS - 3)[:, None], other=0.0)
            s = tl.dot(left, other.T)
            acc = tl.dot(s.to(tl.float16), tl.load(k + places), acc)
        if KIND == "two" and block % 2 == 1:
            acc = tl.dot(left, tl.load(v + cols[:, None] * D + cols[None, :]), acc)
    tl.store(out + rows[:, None] * D + cols[None, :], acc)
# fmt: on


BLOCKS = [2, 0, -1, 1, -2, 5, 3, -3]


def want(x, k, v, kind: str, BS: int) -> torch.Tensor:
    x, k, v = x.float(), k.float(), v.float()
    acc = torch.zeros_like(x)
    for block in BLOCKS:
        rows = slice(abs(block) * BS, (abs(block) + 1) * BS)
        if block >= 0:
            s = x @ k[rows].T + (x @ v[rows].T if kind == "twice" else 0)
            acc += s.half().float() @ (v[rows] + (kind == "added"))
        elif kind == "both":
            other = v[rows].clone()
            other[BS - 3 :] = 0
            acc += (x @ other.T).half().float() @ k[rows]
        if kind == "two" and block % 2 == 1 and block >= 0:
            acc += x @ v[: x.shape[1]]
    return acc


def made_of(kind: str, M: int, D: int, BS: int) -> tuple[Kernel, list[torch.Tensor], torch.Tensor]:
    x, k, v = (seeded(n, D, dtype=torch.float16) * 0.3 for n in (M, 6 * BS, 6 * BS))
    v = v.flip(0).contiguous()
    args = [x, k, v, torch.tensor(BLOCKS, dtype=torch.int32), torch.zeros(M, D)]
    made = chosen_blocks.compile(*args, len(BLOCKS), kind, M, D, BS, grid=(1,))
    return made, args, want(x, k, v, kind, BS)


@pytest.mark.parametrize("shape", [(16, 64, 64), (64, 64, 32), (32, 32, 16), (128, 128, 64)])
@pytest.mark.parametrize("kind", ["once", "twice", "both", "two"])
def test_blocks(kind: str, shape: tuple[int, int, int]) -> None:
    made, args, expected = made_of(kind, *shape)
    placed = [line for line in made.notes if PLACED in line]
    # Rows of 32 elements, not along K, are none that the tensor core reads.
    narrow = {"once": 1, "two": 1, "both": 2, "twice": 1}
    expected_lines = {"both": 4, "two": 3}.get(kind, 2) if shape[1] > 32 else narrow[kind]
    assert len(placed) == expected_lines, made.notes
    given = dict(zip(chosen_blocks.description.names, [*args, len(BLOCKS)], strict=False))
    simulator.emulate(made, given, (1, 1, 1), seed=shape[0] + len(kind))
    torch.testing.assert_close(args[4], expected, rtol=2e-2, atol=2e-2)


def test_tiles_that_threads_read_go_through_registers() -> None:
    made, args, expected = made_of("added", 16, 64, 64)
    assert sum(PLACED in line for line in made.notes) == 1
    given = dict(zip(chosen_blocks.description.names, [*args, len(BLOCKS)], strict=False))
    simulator.emulate(made, given, (1, 1, 1))
    torch.testing.assert_close(args[4], expected, rtol=2e-2, atol=2e-2)


def test_the_second_operand_is_on_its_way_under_the_first_product() -> None:
    made, _, _ = made_of("once", 16, 64, 64)
    text = made.module.source
    assert text.index("cp_async_wait<1>();") < text.index("cp_async_wait<0>();")
    assert text.count("fence_async_smem();") == 3, "one for what stays, one for each product"
