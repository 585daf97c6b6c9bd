"""Warps of a single role whose loops carry several sums of products."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import single
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import ResourceError
from tiledsl.ws.single_plan import SinglePlan


# fmt: off
@tiledsl.jit
def larger_sum(a: tl.Tensor, b: tl.Tensor, u: tl.Tensor, v: tl.Tensor, c: tl.Tensor,
               BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The larger one of two sums of products, element by element."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x, y = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), x)
        y = tl.dot(u.load((m, k), (BM, BK)), v.load((k, n), (BK, BN)), y)
    c.store((m, n), tl.maximum(x, y))
# fmt: on


def made(**options: object) -> Kernel:
    a, b, c = torch.empty(3, 168, 168, dtype=torch.bfloat16, device="meta")
    sizes = {"BM": 128, "BN": 96, "BK": 64}
    given: dict[str, Any] = {**sizes, "warp_specialize": False, **options}
    _, request = larger_sum.request_for((a, b, a, b, c), given, (2, 2))
    return next(modules(request))


def warps(kernel: Kernel) -> int:
    assert isinstance(kernel.plan, SinglePlan)
    return kernel.plan.num_warps


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 8),
        ({"BN": 32}, 4),  # both sums leave room
        ({"num_warps": 4}, 4),  # as the user says
        ({"BN": 256}, 8),  # no warps hold both, and these spill least
        ({"BN": 192}, 8),  # four hold one, none both
    ],
    ids=str,
)
def test_warps_make_room_for_all_sums(options: dict[str, object], expected: int) -> None:
    assert warps(made(**options)) == expected


def test_fewer_warps_where_more_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = single.lower_single

    def crowded(graph: Any, plan: SinglePlan, target: Any) -> Any:
        if plan.num_warps == 8:
            raise ResourceError("no room")
        return lower(graph, plan, target)

    monkeypatch.setattr(single, "lower_single", crowded)
    assert warps(made()) == 4
