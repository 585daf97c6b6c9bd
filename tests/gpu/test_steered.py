"""Control flow that depends on results, on the GPU: both sides of branches, tickets, rescaling."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.steered_kernels import DECLINED
from tests.steered_kernels import SPECIALISED
from tests.steered_kernels import Case
from tests.steered_kernels import agree
from tests.steered_kernels import attention_args
from tests.steered_kernels import interpreted
from tests.steered_kernels import product_args
from tests.steered_kernels import ticket_args

pytestmark = pytest.mark.gpu

LARGE = {
    "attention": lambda device: attention_args(1500, device),
    "ticket": lambda device: ticket_args(64 * 24, 8, device),
}


def args_of(case: Case, name: str, device: str) -> dict[str, Any]:
    """So many programs that CTAs have several where they stay."""
    if name in LARGE:
        return LARGE[name](device)
    args = product_args(64 * 500 + 9, device=device)
    return args | {"o": torch.full((600,), 7.0, device=device)}


@functools.cache
def wanted(case: Case, name: str, BM: int) -> dict[str, Any]:
    return interpreted(case, args_of(case, name, "cpu"), BM)


def run(case: Case, name: str, **options: Any) -> None:
    BM = 128 if options.get("num_consumers") == 2 else 64
    args, want = args_of(case, name, "cuda"), wanted(case, name, BM)
    for _ in range(2):
        got = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in args.items()}
        case.kernel[case.grid(got, BM)](*got.values(), **case.options(BM), **options)
        agree(case, got, want)


@pytest.mark.parametrize("name", list(SPECIALISED))
def test_kernels_with_roles(name: str) -> None:
    run(SPECIALISED[name], name, warp_specialize=True)


@pytest.mark.parametrize("options", [{"num_consumers": 2}, {"ping_pong": True}], ids=str)
@pytest.mark.parametrize("name", ["branch", "blocks"])
def test_warpgroups_that_take_different_sides(name: str, options: dict[str, Any]) -> None:
    run(SPECIALISED[name], name, **options)


def test_clusters_that_take_different_sides() -> None:
    run(SPECIALISED["either"], "either", cluster=2)


@pytest.mark.parametrize("name", list(DECLINED))
def test_single_roles(name: str) -> None:
    run(DECLINED[name], name)
