"""Descriptors and slots of attention stay in uniform registers, which ptxas decides by itself.

Where it takes a loop or a branch for divergent, or runs out of uniform registers, every wgmma of a
chain waits for a move (R2UR): 3 to 5 % of attention. No log tells; the machine code does.
"""

from __future__ import annotations

import struct

import pytest
import torch

from examples.attention import attention_kernel
from examples.attention import tiles
from tests.triton_style.online_softmax import CASES

pytestmark = pytest.mark.nvrtc

MOVE = 0x2CA
"""R2UR: a register to a uniform one."""
WGMMA = (0x9F0, 0xDF0)
"""HGMMA, its left operand in shared memory or in registers."""
CHAIN = 8
"""Wgmmas of a chain at head dim 128; the instructions before one that belong to it."""


def opcodes(cubin: bytes) -> list[int]:
    """The opcode field of each instruction of the kernel."""
    at = struct.unpack_from("<Q", cubin, 0x28)[0]
    count, names = (
        struct.unpack_from("<H", cubin, 0x3C)[0],
        struct.unpack_from("<H", cubin, 0x3E)[0],
    )
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + 64 * i) for i in range(count)]
    for name, _, _, _, start, size, *_ in sections:
        if cubin[sections[names][4] + name :].startswith(b".text."):
            words = (struct.unpack_from("<Q", cubin, i)[0] for i in range(start, start + size, 16))
            return [w & 0xFFF for w in words]
    raise AssertionError("no code")


@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_chains_of_wgmmas_have_no_moves_between_them(D: int, *, causal: bool) -> None:
    q, o = (torch.empty(4, 16, 4096, D, device="meta", dtype=torch.bfloat16) for _ in range(2))
    lse = torch.empty(4, 16, 4096, device="meta")
    sizes = tiles(4096, D, D)
    grid = (-(-4096 // sizes["BM"]), 16, 4)
    args = (q, q, q, o, lse, q, 0, D**-0.5, causal, 0, None, 1)
    made = attention_kernel.compile(*args, **sizes, grid=grid, fast_math=True)
    assert made.compiled is not None
    ops = opcodes(made.compiled.cubin)
    wgmmas = [i for i, op in enumerate(ops) if op in WGMMA]
    assert len(wgmmas) >= 40
    before = [ops[max(a, b - CHAIN) : b] for a, b in zip([0, *wgmmas], wgmmas, strict=False)]
    moved = sum(MOVE in part for part in before)
    assert moved <= CHAIN, "one chain, behind the loops, has moves in causal attention"


def test_a_tile_that_ends_with_a_branch() -> None:
    """Where some programs only store the sums, warps come together behind that."""
    case = next(case for case in CASES if case.name == "two_loop_attention")
    made = case.kernel.compile(*case.make(), grid=case.grid, **case.keywords)
    assert made.compiled is not None
    ops = opcodes(made.compiled.cubin)
    wgmmas = [i for i, op in enumerate(ops) if op in WGMMA]
    before = [ops[max(a, b - CHAIN) : b] for a, b in zip([0, *wgmmas], wgmmas, strict=False)]
    assert sum(MOVE in part for part in before) <= CHAIN // 2
