"""Right operands that are one number: written to shared memory once, in roles too."""

from __future__ import annotations

import shutil

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.simulator import emulate
from tiledsl.simulator import simulate
from tiledsl.ws.plan import Plan

BF16, E4 = torch.bfloat16, torch.float8_e4m3fn
TILES = {"BM": 128, "BN": 64}


# fmt: off
@tiledsl.jit
def row_sums(q: tl.Tensor, k: tl.Tensor, o: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    """Eight times the same sum of a row's weights, by products with columns of a half."""
    m = tl.program_id(0) * BM
    total = tl.zeros((BM, 8), tl.float32)
    x = q.load((m, 0), (BM, 64))
    halves = tl.full((BN, 8), 0.5, q.dtype)
    for n in range(0, k.shape[0], BN):
        s = tl.dot(x, tl.trans(k.load((n, 0), (BN, 64))), max_num_imprecise_acc=1 << 20)
        p = tl.maximum(s, 0.0).to(q.dtype)
        total += tl.dot(p, halves, max_num_imprecise_acc=1 << 20)
    o.store((m, 0), total)
# fmt: on


def arguments(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Three tiles of rows; scores are small integers, which 8 bits hold."""
    q, k = (torch.randint(-1, 2, (n, 64)) * (torch.rand(n, 64) < 0.1) for n in (320, 192))
    return {"q": q.to(dtype), "k": k.to(dtype), "o": torch.full((320, 8), torch.nan)}


def wanted(given: dict[str, torch.Tensor]) -> torch.Tensor:
    weights = (given["q"].float() @ given["k"].float().t()).clamp(min=0)
    return (0.5 * weights.sum(1, keepdim=True)).expand(-1, 8)


def compiled(given: dict[str, torch.Tensor], **options: int) -> Kernel:
    _, request = row_sums.request_for(tuple(given.values()), {**TILES, **options}, (3,))
    return next(modules(request))


@pytest.mark.parametrize("dtype", [BF16, E4], ids=str)
def test_roles_write_a_constant_operand_once(dtype: torch.dtype) -> None:
    given = arguments(dtype)
    made = compiled(given)
    assert isinstance(made.plan, Plan), [*made.notes, *made.declined]
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    for seed in (1, 2):
        given["o"].fill_(torch.nan)
        simulate(made, given, (3,), seed=seed)
        assert torch.equal(given["o"], wanted(given))
    row_sums[(3,)](*given.values(), **TILES)
    assert torch.equal(given["o"], wanted(given))


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize("dtype", [BF16, E4], ids=str)
def test_its_text_gives_the_same_sums(dtype: torch.dtype, consumers: int) -> None:
    given = arguments(dtype)
    made = compiled(given, num_consumers=consumers)
    emulate(made, given, (3,), seed=2)
    assert torch.equal(given["o"], wanted(given))


def test_it_is_written_before_the_first_tile() -> None:
    made = compiled(arguments(E4))
    assert "halves operand" in made.smem.table()
    before, _, tiles = made.module.source.rpartition("while (true)")
    assert "write_shared<1, e4m3>(halves_" in before
    assert "named_barrier_sync" not in tiles
