"""What one role finds of a tile and hands on to the others."""

from __future__ import annotations

import functools

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.grouped_list import grid_of
from examples.grouped_list import grouped_list
from examples.grouped_list import tensors
from examples.grouped_matmul import grouped_matmul
from examples.matmul import matmul
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.ir.op import Op
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.barrier import Arrive
from tiledsl.ir.ops.barrier import MbarrierWait
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import DrawTile
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.ops.smem import WriteScalars
from tiledsl.ir.ops.tma import Load
from tiledsl.report import render_report
from tiledsl.ws.plan import Plan
from tiledsl.ws.search_role import SEARCH

BF16 = torch.bfloat16


# fmt: off
@tiledsl.jit
def placed(x: tl.Tensor, w: tl.Tensor, table, c: tl.Tensor, COUNT: tl.constexpr, WIDE: tl.constexpr = False,
           BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """Several numbers of a tile lie in memory: where its rows, its columns and its K are."""
    pid = tl.program_id(0)
    m = tl.load(table + pid * COUNT)
    n = tl.load(table + pid * COUNT + 1)
    for i in tl.static_range(2, COUNT):
        n += tl.where(i == COUNT - 1, tl.load(table + pid * COUNT + i), 0)
    if WIDE:
        n = n.to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def crowded(x: tl.Tensor, w: tl.Tensor, table, c: tl.Tensor, BM: tl.constexpr = 128, BN: tl.constexpr = 128,
            BK: tl.constexpr = 64):
    """Five numbers of a tile that lie in memory."""
    place = table + tl.program_id(0) * 5
    z, m, n = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.load(place + 3), BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, n), (BK, BN)), acc)
    c.store((z, m, n), acc, end=tl.load(place + 4))


@tiledsl.jit
def scattered(x: tl.Tensor, w: tl.Tensor, table, c: tl.Tensor, BM: tl.constexpr = 128, BN: tl.constexpr = 128,
              BK: tl.constexpr = 64):
    """Five numbers that lie in memory say where operands lie, one where the result does."""
    place = table + tl.program_id(0) * 6
    y, z, m = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    n, row = tl.load(place + 3), tl.load(place + 5)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.load(place + 4), BK):
        acc = tl.dot(x.load((y, m, k), (BM, BK)), w.load((z, k, n), (BK, BN)), acc)
    c.store((row, 0), acc)


@tiledsl.jit
def filed(x: tl.Tensor, w: tl.Tensor, table, c: tl.Tensor, BM: tl.constexpr = 128, BN: tl.constexpr = 128,
          BK: tl.constexpr = 64):
    """A number that lies in memory says where the result goes."""
    m, row = tl.program_id(0) * BM, tl.load(table + tl.program_id(0))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, x.shape[1], BK):
        acc = tl.dot(x.load((m, k), (BM, BK)), w.load((k, 0), (BK, BN)), acc)
    c.store((row, 0), acc)
# fmt: on


def groups(**options: object) -> Kernel:
    t, g, n, k = 65536, 64, 4096, 2048
    x, c = (torch.empty(t, d, device="meta", dtype=BF16) for d in (k, n))
    w = torch.empty(g, n, k, device="meta", dtype=BF16).transpose(1, 2)
    offsets, starts = (torch.empty(g + 1, device="meta", dtype=torch.int32) for _ in range(2))
    args = (x, w, offsets, starts, c, g, 6)
    grid = lambda meta: (t // 128 + g, -(-n // meta["BN"]))  # noqa: E731
    return first(grouped_matmul.request_for(args, options, grid)[1])


def problems(count: int, **options: object) -> Kernel:
    shapes = [(1000 + 24 * i, 1024, 512) for i in range(count)]
    a, b = tensors(shapes, "meta")
    c = [torch.empty(m, n, device="meta", dtype=BF16) for m, n, _ in shapes]
    return first(grouped_list.request_for((a, b, c), options, grid_of(shapes))[1])


def product(**options: object) -> Kernel:
    x = torch.empty(4096, 4096, device="meta", dtype=BF16)
    grid = lambda meta: (-(-4096 // meta["BM"]), -(-4096 // meta["BN"]))  # noqa: E731
    return first(matmul.request_for((x, x.t(), x), options, grid)[1])


def places(count: int, *, wide: bool = False) -> Kernel:
    x = torch.empty(4096, 4096, device="meta", dtype=BF16)
    table = torch.empty(count * 1024, device="meta", dtype=torch.int32)
    return first(placed.request_for((x, x.t(), table, x, count, wide), {}, (1024, 1, 1))[1])


def many_places() -> Kernel:
    x = torch.empty(4096, 4096, device="meta", dtype=BF16)
    table = torch.empty(5 * 1024, device="meta", dtype=torch.int32)
    args = (x, x.t(), table, x.view(4, 1024, 4096))
    return first(crowded.request_for(args, {}, (1024, 1, 1))[1])


def scattered_places() -> Kernel:
    x = torch.empty(4, 1024, 4096, device="meta", dtype=BF16)
    table = torch.empty(6 * 1024, device="meta", dtype=torch.int32)
    args = (x, x.transpose(1, 2), table, x.view(4096, 4096))
    return first(scattered.request_for(args, {"ping_pong": False}, (1024, 1, 1))[1])


def filed_results() -> Kernel:
    x = torch.empty(131072, 512, device="meta", dtype=BF16)
    table = torch.empty(1024, device="meta", dtype=torch.int32)
    args = (x, x[:128].t(), table, torch.empty(131072, 128, device="meta", dtype=BF16))
    return first(filed.request_for(args, {"ping_pong": False}, (1024, 1, 1))[1])


made = functools.cache(lambda kind: {"groups": groups, "list": lambda: problems(64)}[kind]())


def ops_of(kernel: Kernel, role: str) -> list[Op]:
    assert kernel.machine is not None
    return list(next(r for r in kernel.machine.find(Role) if r.name == role).body.walk())


def some(ops: list[Op], cls: type[Op]) -> list[Op]:
    return [o for o in ops if isinstance(o, cls)]


def hints_of(kernel: Kernel) -> set[str]:
    assert kernel.machine is not None
    return {o.cache_hint for o in kernel.machine.find(Load)}


# ---------------------------------------------------------------------- found once
@pytest.mark.parametrize("kind", ["groups", "list"])
def test_a_tile_is_searched_for_once(kind: str) -> None:
    """Neither loads nor consumers search, divide, or read memory between two tiles."""
    kernel = made(kind)
    finder, loads, users = (ops_of(kernel, name) for name in (SEARCH, "producer", "consumer"))
    for cls in (TileToProgram, pointer.Load) if kind == "groups" else (TileToProgram, Mod):
        assert some(finder, cls)
        assert not some(users, cls)
        assert not some(loads, cls)
    words = 2 if kind == "groups" else 1
    assert len(some(finder, WriteScalars)) == 4 * words, "for a tile, and for the end of all"
    assert len(some(loads, ReadScalars)) == len(some(users, ReadScalars)) == words
    tiles = next(o for o in users if isinstance(o, For | While))
    over_store, rest = some(list(tiles.body.walk()), For)
    assert isinstance(over_store, For)
    assert isinstance(rest, For)
    assert over_store.upper is rest.lower, "the loops over K alone"
    assert not kernel.notes
    assert "a thread of another warp finds the numbers of tiles" in render_report(kernel)


@pytest.mark.parametrize("kind", ["groups", "list"])
def test_a_search_stays_rolled_up(kind: str) -> None:
    """Unrolled, it would push the loops of the consumers out of the instruction cache."""
    search = some(ops_of(made(kind), SEARCH), For)[-1]
    assert isinstance(search, For)
    assert search.unroll == -1
    source = made(kind).module.source
    assert source.count("#pragma unroll 1\n        for (int") == 1


def test_numbers_of_tiles_in_steps_are_given_back_behind_the_loop() -> None:
    """A lane that is late may not have them yet where they are read."""
    kernel = places(3)
    users = ops_of(kernel, "consumer")
    read = users.index(some(users, ReadScalars)[0])
    (waited,) = [o for o in users[:read] if isinstance(o, MbarrierWait)]
    name = waited.barriers.name.removesuffix("_full")
    (given,) = [o for o in some(users, Arrive) if o.barriers.name == f"{name}_empty"]
    assert users.index(given) > users.index(some(users, mma.Wait)[-1])
    certificate = kernel.certificate
    assert certificate is not None
    assert certificate.proved, certificate.failure


@pytest.mark.parametrize("kind", ["groups", "list"])
def test_a_loop_follows_uniform_numbers(kind: str) -> None:
    """A number of another tile may be negative: no clamp, but equal in the warp."""
    for read in some(ops_of(made(kind), "consumer"), ReadScalars):
        assert isinstance(read, ReadScalars)
        assert read.uniform
        assert read.signed


def test_a_bare_product_hands_nothing_on() -> None:
    assert not some(ops_of(product(), "consumer"), ReadScalars)


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (lambda: places(2, wide=True), ""),
        (lambda: places(3), ""),
        (many_places, "5 numbers, and a slot holds 4"),
        (lambda: groups(debug=True), "assertions ask for them in every role"),
    ],
    ids=["an index in i64", "two of three", "too many", "debug"],
)
def test_what_keeps_numbers_at_home_is_said(kernel, why: str) -> None:
    found = kernel()
    said = [n for n in found.notes if n.startswith("the consumers look for their tile themselves")]
    assert [n.partition(": ")[2] for n in said] == ([why] if why else [])
    assert bool(some(ops_of(found, "consumer"), ReadScalars)) == (not why)


def test_a_load_role_that_asks_for_too_much_searches_itself() -> None:
    """And hands on what the consumers ask for."""
    kernel = scattered_places()
    (note,) = [n for n in kernel.notes if n.startswith("the load role looks for its tile itself")]
    assert note.endswith("5 numbers, and a slot holds 4")
    assert kernel.machine is not None
    assert SEARCH not in {r.name for r in kernel.machine.find(Role)}
    assert len(some(ops_of(kernel, "producer"), WriteScalars)) == 1
    assert len(some(ops_of(kernel, "consumer"), ReadScalars)) == 1


def test_a_load_role_that_asks_for_nothing_is_told_nothing() -> None:
    kernel = filed_results()
    assert len(some(ops_of(kernel, SEARCH), WriteScalars)) == 1
    loads = ops_of(kernel, "producer")
    assert not some(loads, ReadScalars)
    assert not some(loads, pointer.Load)
    assert kernel.certificate is not None
    assert kernel.certificate.proved, kernel.certificate.failure


def test_what_is_looked_up_may_be_shared() -> None:
    """All tiles of a group read its weights, which are then not the first to leave L2."""
    x, w, c = (torch.empty(n, 8192, device="meta", dtype=BF16) for n in (16, 8192, 16))
    grid = lambda meta: (-(-16 // meta["BM"]), -(-8192 // meta["BN"]))  # noqa: E731
    few = first(matmul.request_for((x, w.t(), c), {}, grid)[1])
    assert hints_of(few) == {"evict_first", "evict_last"}
    assert hints_of(made("groups")) == {""}


# ---------------------------------------------------------------------- drawn at run time
@pytest.mark.parametrize("kind", ["groups", "list"])
def test_tiles_of_uneven_problems_are_drawn(kind: str) -> None:
    """The role of the search draws them; the others hear when there are no more."""
    kernel = made(kind)
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.dynamic
    assert "tiles drawn at run time" in kernel.plan.describe()
    for role in ("producer", "consumer"):
        ops = ops_of(kernel, role)
        assert isinstance(next(o for o in ops if o.is_loop), While)
        assert not some(ops, DrawTile)
        (test,) = [o for o in some(ops, Compare) if o.result.name == "has_tile"]
        assert test.operands[0] is some(ops, ReadScalars)[-1].results[3]
        given = [i for i, o in enumerate(ops) if isinstance(o, Arrive) and not is_of_operands(o)]
        assert len(given) == 2, "in the loop, and behind it for the slot that tells of the end"
    (drawn,) = some(ops_of(kernel, SEARCH), DrawTile)
    ops = ops_of(kernel, SEARCH)
    inside = [w for w in some(ops, WriteScalars) if ops.index(w) < ops.index(drawn)]
    assert len(inside) == len(some(ops, WriteScalars)) // 2, "drawn after the one before was told"
    certificate = kernel.certificate
    assert certificate is not None
    assert certificate.proved, certificate.failure


def is_of_operands(op: Arrive) -> bool:
    return op.barriers.name.startswith("a_b")


def test_tiles_of_the_same_work_are_walked_to_in_steps() -> None:
    plan = places(3).plan
    assert isinstance(plan, Plan)
    assert not plan.dynamic


@pytest.mark.parametrize("kind", ["groups", "list"])
def test_a_warpgroup_without_rows_leaves_out_its_products(kind: str) -> None:
    users = ops_of(made(kind), "consumer")
    around = [o for o in some(users, If) if some(list(o.then.ops), mma.Issue)]
    assert len(around) == 2
    assert {o.condition.name for o in around} == {"is_stored"}
    for branch in around:
        assert not some(list(branch.then.ops), MbarrierWait), "it takes its slots all the same"
