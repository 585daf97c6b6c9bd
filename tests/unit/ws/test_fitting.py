"""Rings that turn out too deep lose slots before a kernel loses its roles."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.fp8_attention import eighths
from examples.fp8_attention import fp8_attention_kernel
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import matmul_request
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import ResourceError
from tiledsl.simulator import simulate
from tiledsl.ws.fitting import fitted
from tiledsl.ws.plan import Plan

BF16 = torch.bfloat16


# fmt: off
@tiledsl.jit
def siblings(a: tl.Tensor, b: tl.Tensor, u: tl.Tensor, v: tl.Tensor, c: tl.Tensor, BN: tl.constexpr,
             K: tl.constexpr):
    """The second loop takes four times the slot of the first one."""
    m, n = tl.program_id(0) * 128, tl.program_id(1) * BN
    acc = tl.zeros((128, BN), tl.float32)
    for k in range(0, a.shape[1], 32):
        acc = tl.dot(a.load((m, k), (128, 32)), b.load((k, n), (32, BN)), acc)
    for k in range(0, u.shape[1], K):
        acc = tl.dot(u.load((m, k), (128, K)), v.load((k, n), (K, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def stored_twice(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, d: tl.Tensor, BM: tl.constexpr,
                 BN: tl.constexpr):
    """The staging of the turned store is larger."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, n), (64, BN)), acc)
    d.store((n, m), tl.trans(acc))
    c.store((m, n), acc)
# fmt: on


def small(*shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape).to(BF16)


def specialised(kernel: tiledsl.JitFunction, args: dict[str, torch.Tensor], **constants: int):
    _, request = kernel.request_for(tuple(args.values()), constants, (1, 1))
    made = next(modules(request))
    assert isinstance(made.plan, Plan), [*made.notes, *made.declined]
    return made


def test_sibling_loops_with_other_tiles() -> None:
    args = {"a": small(128, 64), "b": small(64, 256), "u": small(128, 256), "v": small(256, 256)}
    args["c"] = torch.zeros(128, 256)
    made = specialised(siblings, args, BN=256, K=128)
    assert any("slots of a ring" in note for note in made.notes)
    simulate(made, args, (1, 1), seed=1)
    wanted = [args[x].float() @ args[y].float() for x, y in (("a", "b"), ("u", "v"))]
    assert torch.equal(args["c"], sum(wanted))


@pytest.mark.parametrize("BM", [64, 128])
def test_stores_that_are_staged_otherwise(BM: int) -> None:
    args = {"a": small(BM, 128), "b": small(128, 256)}
    args |= {"c": torch.zeros(BM, 256, dtype=BF16), "d": torch.zeros(256, BM, dtype=BF16)}
    made = specialised(stored_twice, args, BM=BM, BN=256)
    assert any(note.startswith("shared memory holds ") for note in made.notes)
    simulate(made, args, (1, 1), seed=1)
    want = (args["a"].float() @ args["b"].float()).to(BF16)
    assert torch.equal(args["c"], want)
    assert torch.equal(args["d"], want.t())


def test_fp8_attention_with_wide_heads() -> None:
    """160 bytes were missing for a second slot of the queries."""
    x = torch.empty(1, 2, 512, 256, device="meta", dtype=torch.float8_e4m3fn)
    o, scales = torch.empty_like(x, dtype=BF16), torch.empty(1, 2, 2, device="meta")
    vt = torch.empty(1, 2, 256, 512, device="meta", dtype=x.dtype)
    args = (x, x, vt, scales, eighths("meta"), o, 0.1, False, 256)
    _, request = fp8_attention_kernel.request_for(args, {}, (4, 2, 1))
    made = next(modules(request))
    assert isinstance(made.plan, Plan)
    assert (made.plan.num_consumers, made.plan.num_stages, made.plan.outer_stages) == (2, 2, 1)
    assert "shared memory holds 1 for 2 slots of what is loaded before a loop" in made.notes


def test_a_plan_that_fits_is_taken_as_it_is() -> None:
    made = first(matmul_request(512, 512, 512))
    assert not any(note.startswith("shared memory holds") for note in made.notes)


def test_what_never_fits_is_refused_with_the_first_error() -> None:
    tried: list[Plan] = []

    def never(plan: Plan) -> Kernel:
        tried.append(plan)
        raise ResourceError(f"{len(tried)}")

    with pytest.raises(ResourceError, match="1"):
        fitted(never, Plan(num_stages=20, mma_depth=2))
    assert len(tried) < 8
    assert min(p.num_stages for p in tried) == 2
