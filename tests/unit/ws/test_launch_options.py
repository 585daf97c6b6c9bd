"""The one rule of launch options: structure is honoured or refused, hints leave a note."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.kernels import attention
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import matmul_request
from tests.unit.ws.kernels import meta
from tiledsl.compiler import modules
from tiledsl.errors import ScheduleError
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan

SIDE = 4096
ALONE = {"warp_specialize": False}
NO_STRUCTURE = [{"cluster": 1}, {"split_k": 1}, {"prefetch": 0}, {"ping_pong": False}]


def attention_request(**options):
    x = meta(SIDE, 64)
    return attention.request_for((x, x, x, x, 0.5), options, (SIDE // 128,))[1]


def refused(request) -> ScheduleError:
    with pytest.raises(ScheduleError) as caught:
        next(modules(request))
    return caught.value


# ---------------------------------------------------------------------- a single role
def test_a_single_role_on_request_takes_no_structure() -> None:
    asked = {"cluster": 2, "split_k": 2, "num_consumers": 2, "ping_pong": True}
    error = refused(matmul_request(SIDE, SIDE, SIDE, num_stages=2, **ALONE, **asked))
    assert "num_consumers=2, ping_pong=True, cluster=2, split_k=2: for specialised" in error.message
    assert "warp_specialize=False asks for a single role" in error.message
    assert "leave out either num_consumers, ping_pong, cluster, split_k or" in (error.hint or "")


def test_loops_with_several_dots_are_no_exception() -> None:
    error = refused(attention_request(mma_depth=9, prefetch=7, **ALONE))
    assert "launch options mma_depth=9, prefetch=7: for specialised kernels only" in error.message


@tiledsl.jit
def total(x, o, n, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for i in range(0, n, BLOCK):
        acc += tl.load(x + i + tl.arange(0, BLOCK))
    tl.store(o, tl.sum(acc, 0))


@pytest.mark.parametrize("options", [ALONE, {}], ids=["asked for", "no dot"])
def test_kernels_without_dots_are_no_exception(options: dict[str, object]) -> None:
    asked = {"cluster": 2, "num_consumers": 3, "ping_pong": True, **options}
    x = torch.empty(1 << 20, device="meta")
    error = refused(total.request_for((x, x, 1 << 20, 1024), asked, (1,))[1])
    assert "launch options num_consumers=3, ping_pong=True, cluster=2: " in error.message
    if not options:
        assert error.message.endswith("cluster=2: the kernel has no dot")
        assert error.hint == "leave the options out to run the kernel in a single role"


@pytest.mark.parametrize("options", [*NO_STRUCTURE, {"num_stages": 2}, {"persistent": True}])
def test_what_a_single_role_has_and_hints_are_taken(options: dict[str, object]) -> None:
    assert not Overrides(**options).structural
    assert not isinstance(first(matmul_request(512, 512, 512, **ALONE, **options)).plan, Plan)


def test_hints_never_refuse_a_tile() -> None:
    """No plan has 100 rows, with or without hints: a single role."""
    hints = {"num_stages": 3, "persistent": True, "raster_group": 4}
    made = first(matmul_request(SIDE, SIDE, SIDE, BM=100, BN=128, **hints))
    assert not isinstance(made.plan, Plan)
    assert "the dots have [100] rows, a warpgroup takes 64" in made.declined[0].reason


# ---------------------------------------------------------------------- hints that name a way out
@pytest.mark.parametrize("name", ["cluster", "split_k", "prefetch", "mma_depth", "swap_operands"])
def test_the_hint_follows_from_the_plan_without_the_option(name: str) -> None:
    error = refused(attention_request(**{name: 2 if name != "swap_operands" else True}))
    assert f"a loop that is no plain accumulation takes no {name}" in error.message
    assert "warp_specialize:" not in error.message
    assert error.hint == "leave the option out"
    assert isinstance(first(attention_request()).plan, Plan)


REASONS = [
    ({"cluster": 3}, "cluster must be 1, 2 or 4, got 3", "give 1, 2 or 4, or leave"),
    ({"split_k": 3}, "split_k must be 1, 2 or 4, got 3", "give 1, 2 or 4, or leave"),
    (
        {"mma_depth": 9},
        "mma_depth must be at most 8, got 9: a wait leaves at most 7",
        "give 1 to 8",
    ),
    ({"num_consumers": 7}, "num_consumers must be 1, 2 or 3, got 7", "give 1, 2 or 3, or leave"),
    (
        {"mma_depth": 5, "num_stages": 2},
        "mma_depth=5 needs as many slots, num_stages is 2",
        "give an mma_depth of 1 to 2, or a num_stages of 5 and more",
    ),
    ({"ping_pong": True, "persistent": False}, "needs persistent=True", "one of the two options"),
    (
        {"num_consumers": 3, "BM": 128, "BN": 128},
        "of a 128x128x64 tile split over 3 warpgroups",
        "rows that are a multiple of 192",
    ),
    (
        {"num_consumers": 3, "cluster": 2, "BM": 192, "BN": 256},
        "no legal plan has these values together; without num_consumers there is one",
        "leave num_consumers out, or use another tile",
    ),
]


@pytest.mark.parametrize(("options", "reason", "hint"), REASONS, ids=lambda v: str(v)[:40])
def test_refusals_name_reason_and_remedy(options: dict[str, int], reason: str, hint: str) -> None:
    error = refused(matmul_request(SIDE, SIDE, SIDE, **options))
    assert reason in error.message
    assert hint in (error.hint or "")


TILES = [
    ({"BM": 128, "BN": 100}, "takes 100 elements of a row (200 bytes), and bulk copies"),
    ({"BM": 100, "BN": 128}, "M=100 of the 100x128x64 tile is no multiple of 64"),
    ({"BM": 128, "BN": 512}, "N=512 is more than the 256 columns of a warpgroup"),
    ({"BM": 256, "BN": 256}, "256x256x64 tile take 256 registers of a thread of two warpgroups"),
    ({"BM": 192, "BN": 256, "BK": 256}, "shared memory do not hold a 192x256x256 tile"),
]


@pytest.mark.parametrize(("tile", "reason"), TILES, ids=lambda v: str(v)[:30])
def test_tiles_that_no_plan_has_are_refused_by_name(tile: dict[str, int], reason: str) -> None:
    error = refused(matmul_request(SIDE, SIDE, SIDE, warp_specialize=True, **tile))
    assert reason in error.message


# fmt: off
@tiledsl.jit
def gated(a: tl.Tensor, b: tl.Tensor, d: tl.Tensor, c: tl.Tensor, BN: tl.constexpr = 128):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * BN
    x, y = tl.zeros((128, BN), tl.float32), tl.zeros((128, BN), tl.float32)
    for k in range(0, a.shape[1], 64):
        at = a.load((m, k), (128, 64))
        x = tl.dot(at, b.load((k, n), (64, BN)), x)
        y = tl.dot(at, d.load((k, n), (64, BN)), y)
    c.store((m, n), x * tl.sigmoid(y))
# fmt: on


@pytest.mark.parametrize(
    "options", [{"num_consumers": 1}, {"ping_pong": True}, {"cluster": 2, "BN": 256}], ids=str
)
def test_registers_that_sums_take_are_counted(options: dict[str, int]) -> None:
    error = refused(gated.request_for((meta(SIDE, SIDE),) * 4, options, (32, 32))[1])
    assert "x64 tile take 256 registers of a thread" in error.message
    assert "200 are there" in error.message


# ---------------------------------------------------------------------- notes
@pytest.mark.parametrize("tile", [{}, {"BM": 256, "BN": 128}], ids=["auto", "given"])
def test_more_slots_than_fit_are_a_hint(tile: dict[str, int]) -> None:
    """The tile stays the one that is best without the hint."""
    free = first(matmul_request(SIDE, SIDE, SIDE, **tile))
    deep = first(matmul_request(SIDE, SIDE, SIDE, num_stages=20, **tile))
    assert deep.constants == free.constants
    assert isinstance(deep.plan, Plan)
    assert f"num_stages=20: {deep.plan.num_stages} slots fit and are used" in deep.notes
    few = first(matmul_request(SIDE, SIDE, SIDE, num_stages=2, **tile))
    assert isinstance(few.plan, Plan)
    assert few.plan.num_stages == 2
    assert not [n for n in few.notes if "num_stages" in n]


def test_plans_with_one_fault_are_noted_once() -> None:
    error = refused(matmul_request(SIDE, SIDE, SIDE, BM=128, BN=256, BK=40, warp_specialize=True))
    assert error.message.count("plan given up") == 1
    assert "K is 40, expected a multiple of 16 for bf16 (kernels.py:" in error.message


# fmt: off
@tiledsl.jit
def ordered(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 256
    acc = tl.zeros((128, 256), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 256)), acc)
    found = tl.sort(acc)
    c.store((m, n), found * 2.0)
# fmt: on


def test_the_op_that_no_plan_can_have_is_named() -> None:
    args = (meta(512, 512),) * 3
    made = first(ordered.request_for(args, {}, (4, 2))[1])
    line = ordered.fn.__code__.co_firstlineno + 6
    (note,) = [n for n in made.notes if "given up" in n]
    assert note == (
        "plan given up: sort(): warpgroups do not hold its result in parts to stage for the store "
        f"(test_launch_options.py:{line})"
    )
    copies = [n for n in made.notes if "cp.async" in n]
    assert [n.split(": ")[1].split()[0] for n in copies] == ["a", "b"]


# ---------------------------------------------------------------------- the interpreter
WRONG = [
    {"cluster": 3},
    {"split_k": 3},
    {"num_consumers": 7},
    {"mma_depth": 5, "num_stages": 2},
    {"ping_pong": True, "persistent": False},
    {"cluster": 2, **ALONE},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_the_interpreter_refuses_what_no_kernel_takes(options: dict[str, int]) -> None:
    a = torch.ones(64, 64, dtype=torch.bfloat16)
    tile = {"BM": 64, "BN": 64, "BK": 64}
    with pytest.raises(ScheduleError) as caught:
        matmul[(1, 1)](a, a, a.clone(), **tile, **options)
    with pytest.raises(ScheduleError) as compiled:
        matmul.compile(a, a, a.clone(), grid=(1, 1), **tile, **options)
    assert (caught.value.message, caught.value.hint) == (
        compiled.value.message,
        compiled.value.hint,
    )


def test_the_interpreter_refuses_roles_of_a_kernel_without_a_dot() -> None:
    x, o = torch.ones(64), torch.zeros(1)
    with pytest.raises(ScheduleError, match="cluster=2: the kernel has no dot"):
        total[(1,)](x, o, 64, 64, cluster=2)
    total[(1,)](x, o, 64, 64, num_stages=3, num_warps=2, persistent=True)
    assert o.item() == 64
