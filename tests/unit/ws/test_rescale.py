"""Sums that a loop rescales are left alone where no row of a warp has a new maximum."""

from __future__ import annotations

import re

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.fp8_attention import eighths
from examples.fp8_attention import fp8_attention_kernel
from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import VerifyError
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.barrier import WarpSync
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import HOPPER

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


# fmt: off
@tiledsl.jit
def online(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, FORM: tl.constexpr,
           D: tl.constexpr = 128, BM: tl.constexpr = 128, BN: tl.constexpr = 64):
    """Attention whose CUDA cores have much to do, with the factor of the sum in several forms."""
    m = tl.program_id(0) * BM
    x = q.load((m, 0), (BM, D))
    top = tl.full((BM,), -1e30, tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, k.shape[0], BN):
        s = 30.0 * tl.tanh(tl.dot(x, tl.trans(k.load((n, 0), (BN, D)))))
        new = tl.maximum(tl.max(s, 1), top)
        if FORM == "exp":
            fade = tl.exp(top - new)
        elif FORM == "scaled":
            fade = tl.exp2(0.25 * (top - new) * 0.5)
        elif FORM == "decay":
            fade = tl.exp2(0.5 * new)
        elif FORM == "backwards":
            fade = tl.exp2(new - top)
        else:
            fade = 1.0 / (1.0 + new)
        p = tl.exp(s - new[:, None])
        acc = tl.dot(p.to(v.dtype), v.load((n, 0), (BN, D)), fade[:, None] * acc)
        top = new
    o.store((m, 0), acc)
# fmt: on


def compiled(form: str) -> Kernel:
    x = torch.empty(1024, 128, device="meta", dtype=BF16)
    return first(online.request_for((x, x, x, x, form), {}, lambda c: (8,))[1])


def rescaling(kernel: Kernel) -> list[Map]:
    assert kernel.machine is not None
    return [o for o in kernel.machine.find(Map) if o.unless_one >= 0]


@pytest.mark.parametrize("form", ["exp", "scaled"])
def test_a_sum_is_rescaled_under_a_vote(form: str) -> None:
    kernel = compiled(form)
    maps = rescaling(kernel)
    assert maps
    for op in maps:
        assert isinstance(op.inputs[op.in_place].defining_op, mma.Wait)
        assert op.follows[op.unless_one] == (0, None)[: len(op.follows[op.unless_one])]
    text = kernel.module.source
    votes = re.findall(
        r"if \(any_but_one\((\w+)\)\) {\s+#pragma unroll\s+for [^\n]*\n([^\n]*)", text
    )
    assert len(votes) == len(maps)
    for factor, line in votes:
        assert re.search(rf"(acc_\d+)\[i\] = {factor}\[.*\] \* \1\[i\];", line)
        # Nothing is copied: the sum stays in its registers where the loop does not run.
    assert "copy(acc" not in text


@pytest.mark.parametrize("form", ["decay", "backwards", "quotient"])
def test_other_factors_have_no_vote(form: str) -> None:
    kernel = compiled(form)
    assert not rescaling(kernel)
    assert "any_but_one" not in kernel.module.source


@pytest.mark.parametrize(
    ("D", "BM", "BN", "votes"), [(128, 128, 192, 2), (128, 192, 96, 2), (64, 128, 128, 0)]
)
def test_votes_of_fp8_attention(D: int, BM: int, BN: int, votes: int) -> None:
    """In each copy of the loop; the first iteration has nothing to rescale. Short sums take none."""
    q, v = (torch.empty(1, 2, *n, device="meta", dtype=E4M3) for n in ((4096, D), (D, 4096)))
    scales, o = torch.empty(1, 2, 2, device="meta"), torch.empty(1, 2, 4096, D, device="meta")
    options = {"D": D, "BM": BM, "BN": BN, "fast_math": True}
    args = (q, q, v, scales, eighths("meta"), o.to(BF16), D**-0.5, False)
    request = fp8_attention_kernel.request_for(args, options, lambda c: (22, 2, 1))[1]
    kernel = first(request)
    assert kernel.plan.skips_ones is (votes > 0)
    # Where the CUDA cores set the pace, each copy of the loop body takes three scores at a time.
    copies = kernel.module.source.count("reduce_max_by_three<")
    assert copies == 2 * votes
    assert not copies or not re.search(
        r"reduce_(registers|chains)<[^;]*Max\(\)", kernel.module.source
    )
    assert kernel.module.source.count("any_but_one(") == votes
    assert any("new maximum" in n for n in kernel.notes) is (votes > 0)


def test_maxima_ignore_nan_without_fast_math() -> None:
    assert rescaling(compiled("exp"))
    assert "by_three" not in compiled("exp").module.source


@pytest.mark.parametrize("D", [64, 128])
def test_loops_that_wait_for_the_tensor_core_take_no_votes(D: int) -> None:
    kernel = first(attention_request(D=D, fast_math=True))
    assert not kernel.plan.skips_ones
    assert "by_three" not in kernel.module.source
    assert "any_but_one" not in kernel.module.source


@pytest.mark.parametrize("form", ["exp", "scaled"])
def test_the_result_is_what_it_was(form: str) -> None:
    torch.manual_seed(0)
    q, k, v = (0.1 * torch.randn(256, 128).to(BF16) for _ in range(3))
    o = torch.empty(256, 128, dtype=BF16)
    online[(2,)](q, k, v, o, form)
    s = 30.0 * torch.tanh(q.float() @ k.float().t())
    power = 1.0 if form == "exp" else 0.125 * 0.6931472
    top = torch.stack([s[:, n : n + 64].amax(1) for n in range(0, 256, 64)]).cummax(0)[0]
    want = torch.zeros(256, 128)
    for i in range(4):
        p = torch.exp(s[:, 64 * i : 64 * i + 64] - top[i][:, None])
        fade = torch.exp((top[max(i, 1) - 1] - top[i]) * power) if i else torch.zeros(256)
        want = want * fade[:, None] + p @ v[64 * i : 64 * i + 64].float()
    assert (o.float() - want).norm() < 1e-2 * want.norm()


def test_a_vote_needs_a_place_that_keeps_its_value() -> None:
    graph = TileGraph("k", Level.WARP_SPECIALIZED)
    type_ = TileType((64, 16), float32)
    total, factor = graph.body.add_arg(type_, "acc"), graph.body.add_arg(type_, "fade")
    body = Region()
    args = [body.add_arg(ScalarType(float32), n) for n in "ab"]
    for n in "ij":
        body.add_arg(ScalarType(int32), n)
    body.ops.append(Yield((args[0],)))
    op = Map((total, factor), (64, 16), None, ((0, 1), (0, 1)), (float32,), body=body, unless_one=1)
    Builder(graph).add(op)
    with pytest.raises(VerifyError, match="takes the place of an input"):
        op.verify(HOPPER)


@pytest.mark.parametrize("ends", [True, False])
def test_a_tile_that_ends_in_one_lane_brings_its_warps_together(*, ends: bool) -> None:
    """Else the loop's cursors lie in registers of lanes. Rows at odd addresses all lanes store."""
    x = torch.empty(1024, 128, device="meta", dtype=BF16)
    o = x if ends else torch.empty(1024, 129, device="meta", dtype=BF16)[:, :128]
    kernel = first(online.request_for((x, x, x, o, "exp"), {}, lambda c: (8,))[1])
    assert kernel.machine is not None
    (loop,) = [
        o
        for o in kernel.machine.find(While)
        if any(isinstance(x, mma.Issue) for x in o.body.walk())
    ]
    last = loop.body.ops[-2]
    assert isinstance(last, WarpSync) is ends
