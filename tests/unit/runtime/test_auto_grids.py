"""Grids of numbers beside constants that the compiler picks (`tl.auto`).

A grid of numbers is refused where a constant says how much of the work a program does, however that
follows from it, and taken where any value leaves the same work to each program.
"""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import LaunchError
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.grid_factors import shares_of
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.printer import print_graph
from tiledsl.ir.specs import AutoInt
from tiledsl.lowering import device_graph
from tiledsl.ws.select import probe_constants

N = 1003
PARTS = tl.constexpr((1, 2, 4))
AUTOS = [tl.auto(64, 128, 256), tl.auto]
REFUSED = "BLOCK is picked by the compiler"


@tiledsl.jit
def double(x, o, n, at):
    tl.store(o + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@tiledsl.jit
def halved_twice(pid, B: tl.constexpr):
    return pid * (B // 2) * 2


# ---------------------------------------------------------------------- of a program's number
@tiledsl.jit
def doubled_width(x, o, n, BLOCK: tl.constexpr):
    double(x, o, n, tl.program_id(0) * (2 * BLOCK) + tl.arange(0, 2 * BLOCK))


@tiledsl.jit
def half_width(x, o, n, BLOCK: tl.constexpr):
    W: tl.constexpr = BLOCK // 2
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, W))


@tiledsl.jit
def by_a_name(x, o, n, BLOCK: tl.constexpr):
    W = BLOCK + 0
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, BLOCK))


@tiledsl.jit
def by_a_helper(x, o, n, BLOCK: tl.constexpr):
    double(x, o, n, halved_twice(tl.program_id(0), BLOCK) + tl.arange(0, BLOCK))


@tiledsl.jit
def by_the_smaller(x, o, n, BLOCK: tl.constexpr):
    W: tl.constexpr = min(BLOCK, 128)
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, W))


@tiledsl.jit
def by_cdiv(x, o, n, BLOCK: tl.constexpr):
    double(x, o, n, tl.program_id(0) * (2 * tl.cdiv(BLOCK, 2)) + tl.arange(0, BLOCK))


@tiledsl.jit
def by_a_branch(x, o, n, BLOCK: tl.constexpr):
    if BLOCK > 64:
        W: tl.constexpr = 128
    else:
        W: tl.constexpr = 64
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, W))


@tiledsl.jit
def by_a_float(x, o, n, BLOCK: tl.constexpr):
    W: tl.constexpr = int(BLOCK * 0.5)
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, W))


@tiledsl.jit
def by_a_table(x, o, n, BLOCK: tl.constexpr):
    W: tl.constexpr = 64 * PARTS[min(BLOCK, 256) // 128]
    double(x, o, n, tl.program_id(0) * W + tl.arange(0, W))


@tiledsl.jit
def by_a_shift(x, o, n, BLOCK: tl.constexpr):
    S: tl.constexpr = 6 if BLOCK == 64 else 7
    double(x, o, n, (tl.program_id(0) << S) + tl.arange(0, BLOCK))


@tiledsl.jit
def four_in_a_loop(x, o, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    for t in range(pid * 4, pid * 4 + 4):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def four_counted(x, o, n, BLOCK: tl.constexpr):
    t = tl.program_id(0) * 4
    for _ in range(4):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))
        t += 1


@tiledsl.jit
def four_while(x, o, n, BLOCK: tl.constexpr):
    t = tl.program_id(0) * 4
    i = 0
    while i < 4:
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))
        t += 1
        i += 1


@tiledsl.jit
def numbered_through(x, o, n, BLOCK: tl.constexpr):
    """The number of programs along an axis says nothing of how much there is."""
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    double(x, o, n, pid * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def parts_of_rows(x, o, n, BLOCK: tl.constexpr):
    """More programs share a row, of which each does the same."""
    double(x, o, n, tl.program_id(0) // (BLOCK // 64) * 64 + tl.arange(0, 64))


@tiledsl.jit
def one_of_two(x, o, n, BLOCK: tl.constexpr):
    double(x, o, n, tl.where(tl.program_id(0) == 1, BLOCK, 0) + tl.arange(0, BLOCK))


@tiledsl.jit
def branch_of_two(x, o, n, BLOCK: tl.constexpr):
    low = 0
    if tl.program_id(0) == 1:
        low = BLOCK
    double(x, o, n, low + tl.arange(0, BLOCK))


@tiledsl.jit
def after_a_branch(x, o, n, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    if n > 2000:
        t = t + 1
    double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def block_pointers(x, o, n, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * (BLOCK + BLOCK),)
    v = tl.load(tl.make_block_ptr(x, (n,), (1,), at, (2 * BLOCK,), (0,)), boundary_check=(0,))
    tl.store(tl.make_block_ptr(o, (n,), (1,), at, (2 * BLOCK,), (0,)), 2 * v, boundary_check=(0,))


@tiledsl.jit
def descriptors(x, o, n, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * (BLOCK - 0),)
    v = tl.make_tensor_descriptor(x, (n,), (1,), (BLOCK,)).load(at)
    tl.make_tensor_descriptor(o, (n,), (1,), (BLOCK,)).store(at, 2 * v)


@tiledsl.jit
def tensors(x: tl.Tensor, o: tl.Tensor, n, BLOCK: tl.constexpr):
    at = (tl.program_id(0) * (2 * BLOCK),)
    o.store(at, 2 * x.load(at, (2 * BLOCK,)))


DEPENDENT = [
    doubled_width, half_width, by_a_name, by_a_helper, by_the_smaller, by_cdiv, by_a_branch,
    by_a_float, by_a_table, by_a_shift, four_in_a_loop, four_counted, four_while,
    numbered_through, parts_of_rows, one_of_two, branch_of_two, after_a_branch, block_pointers, descriptors, tensors,
]  # fmt: skip


def name(kernel):
    return kernel.fn.__name__ if hasattr(kernel, "fn") else None


@pytest.mark.parametrize("kernel", DEPENDENT, ids=name)
def test_a_constant_says_how_much_a_program_does(kernel):
    for auto in AUTOS:
        x, o = torch.randn(N), torch.zeros(N)
        for grid in ((2,), [2], 2):
            with pytest.raises(LaunchError, match=REFUSED):
                kernel[grid](x, o, N, BLOCK=auto)
    meta = torch.empty(N, device="meta")
    with pytest.raises(LaunchError, match=REFUSED):
        kernel.report(meta, meta, N, BLOCK=tl.auto(64, 128, 256), grid=(2,))


@tiledsl.jit
def by_two(x, o, n, A: tl.constexpr, B: tl.constexpr, SPARE: tl.constexpr):
    double(x, o, n, tl.program_id(0) * (A * B) + tl.arange(0, A) + SPARE - SPARE)


def test_several_constants_are_named():
    x, o = torch.randn(N), torch.zeros(N)
    a = tl.auto(32, 64)
    with pytest.raises(LaunchError, match="A and B are picked by the compiler"):
        by_two[(2,)](x, o, N, A=a, B=tl.auto(1, 2), SPARE=a)
    with pytest.raises(LaunchError, match="A is picked by the compiler"):
        by_two[(2,)](x, o, N, A=a, B=tl.auto(1), SPARE=a)


@tiledsl.jit
def tickets(x, o, n, count, BLOCK: tl.constexpr):
    double(x, o, n, tl.atomic_add(count, 1) * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def tickets_to_the_end(x, o, n, count, BLOCK: tl.constexpr):
    t = tl.atomic_add(count, 1)
    while t < tl.cdiv(n, BLOCK):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))
        t = tl.atomic_add(count, 1)


def test_numbers_that_programs_draw():
    x, o, count = torch.randn(N), torch.zeros(N), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(LaunchError, match=REFUSED):
        tickets[(2,)](x, o, N, count, BLOCK=AUTOS[0])
    tickets_to_the_end[(2,)](x, o, N, count, BLOCK=AUTOS[0])
    torch.testing.assert_close(o, 2 * x)


# ---------------------------------------------------------------------- of nobody's share
@tiledsl.jit
def in_steps(x, o, n, BLOCK: tl.constexpr):
    for t in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def in_steps_while(x, o, n, BLOCK: tl.constexpr):
    t = tl.program_id(0)
    while t < tl.cdiv(n, BLOCK):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))
        t += tl.num_programs(0)


@tiledsl.jit
def in_steps_of_three(x, o, n, BLOCK: tl.constexpr):
    for t in range(tl.program_id(0), tl.cdiv(n, BLOCK), 3):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def in_steps_of_all(x, o, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    for t in range(pid, tl.cdiv(n, BLOCK), tl.num_programs(0) * tl.num_programs(1)):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def shared_out(x, o, n, BLOCK: tl.constexpr):
    pid, per = tl.program_id(0), tl.cdiv(tl.cdiv(n, BLOCK), tl.num_programs(0))
    for t in range(pid * per, min((pid + 1) * per, tl.cdiv(n, BLOCK))):
        double(x, o, n, t * BLOCK + tl.arange(0, BLOCK))


@tiledsl.jit
def moved_on(x, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(tl.cdiv(n, BLOCK * tl.num_programs(0))):
        double(x, o, n, at)
        at += BLOCK * tl.num_programs(0)


@tiledsl.jit
def pieces(x, o, n, BLOCK: tl.constexpr):
    low = tl.program_id(0) * 400
    for start in range(low, low + 400, BLOCK):
        double(x, o, min(n, low + 400), start + tl.arange(0, BLOCK))


@tiledsl.jit
def rows_of_few(x, o, n, BLOCK: tl.constexpr):
    """The last program may have fewer elements; in bounds is what masks say."""
    low, size = tl.program_id(0) * 400, tl.where(tl.program_id(0) == 2, n - 800, 400)
    for k in range(tl.cdiv(size, BLOCK)):
        at = k * BLOCK + tl.arange(0, BLOCK)
        double(x, o, n, low + tl.where(at < size, at, 0))


@tiledsl.jit
def pieces_rounded_down(x, o, n, BLOCK: tl.constexpr):
    low = tl.program_id(0) * 400
    for start in range(low // BLOCK * BLOCK, low + 400, BLOCK):
        double(x, o, min(n, low + 400), start + tl.arange(0, BLOCK))


INDEPENDENT = [
    in_steps, in_steps_while, in_steps_of_three, in_steps_of_all, shared_out, moved_on, pieces,
    rows_of_few, pieces_rounded_down,
]  # fmt: skip


@pytest.mark.parametrize("kernel", INDEPENDENT, ids=name)
def test_any_value_leaves_programs_their_work(kernel):
    for auto in AUTOS:
        x, o = torch.randn(N), torch.zeros(N)
        kernel[(3, 2) if kernel is in_steps_of_all else (3,)](x, o, N, BLOCK=auto)
        torch.testing.assert_close(o, 2 * x)


@tiledsl.jit
def persistent(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
               BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):  # fmt: skip
    wide = tl.cdiv(c.shape[1], BN)
    for t in range(tl.program_id(0), tl.cdiv(c.shape[0], BM) * wide, tl.num_programs(0)):
        m, n = t // wide * BM, t % wide * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        c.store((m, n), acc)


def test_a_persistent_product_takes_any_number_of_programs():
    a, b = torch.randn(300, 128).bfloat16(), torch.randn(128, 400).bfloat16()
    c = torch.full((300, 400), float("nan"))
    persistent[(5,)](a, b, c)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)
    assert "persistent" in persistent.report(a, b, c, grid=(5,))


# ---------------------------------------------------------------------- of nothing but a tile
@tiledsl.jit
def whole_rows(x, o, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    low = tl.program_id(0) * n
    tl.store(o + low + at, 2 * tl.load(x + low + at, mask=at < n), mask=at < n)


@tiledsl.jit
def rows_in_pieces(x, o, n, BLOCK: tl.constexpr):
    low = tl.program_id(0) * n
    for start in range(0, n, BLOCK):
        double(x, o, low + n, low + start + tl.arange(0, BLOCK))


@tiledsl.jit
def interleaved(x, o, n, BLOCK: tl.constexpr):
    double(x, o, n, tl.arange(0, BLOCK) * tl.num_programs(0) + tl.program_id(0))


@tiledsl.jit
def start_of_a_tensor(x: tl.Tensor, o: tl.Tensor, n, BLOCK: tl.constexpr):
    o.store((0,), 2 * x.load((0,), (BLOCK,)))


@tiledsl.jit
def in_two_steps(x, o, n, BLOCK: tl.constexpr):
    """However a tile is taken apart, it is whole."""
    at = tl.program_id(0) * n + tl.arange(0, 1024)
    v = tl.load(x + at, mask=tl.arange(0, 1024) < n, other=0.0)
    parts = tl.sum(tl.reshape(v, (BLOCK, 1024 // BLOCK)), 1)
    tl.store(o + tl.program_id(0), tl.sum(parts))


ALONE = "BLOCK is picked by the compiler .*, and says only how large tiles are"


@pytest.mark.parametrize("kernel", [whole_rows, interleaved, start_of_a_tensor], ids=name)
@pytest.mark.parametrize("grid", [(3,), lambda meta: (3,)], ids=["numbers", "function"])
def test_what_does_not_fit_in_a_tile_would_be_left_out(kernel, grid):
    x, o = torch.randn(3 * N), torch.zeros(3 * N)
    meta = torch.empty(3 * N, device="meta")
    for auto in AUTOS:
        with pytest.raises(LaunchError, match=ALONE):
            kernel[grid](x, o, N, BLOCK=auto)
    with pytest.raises(LaunchError, match=ALONE):
        kernel.report(meta, meta, N, BLOCK=AUTOS[0], grid=grid)
    rows_in_pieces[grid](x, o, N, BLOCK=AUTOS[0])
    torch.testing.assert_close(o, 2 * x)


def test_tiles_may_be_taken_apart_anyhow():
    x, o = torch.randn(3, N), torch.zeros(3)
    for auto in (tl.auto(64, 128, 256), tl.auto):
        in_two_steps[(3,)](x, o, N, BLOCK=auto)
        torch.testing.assert_close(o, x.sum(1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "grid",
    [
        lambda meta: (tl.cdiv(N, meta["BLOCK"]),),
        lambda meta: (tl.cdiv(meta["n"], meta["BLOCK"]),),
        lambda meta: (tl.cdiv(N, dict(meta)["BLOCK"]),),
        lambda meta: (tl.cdiv(N, {**meta}["BLOCK"]),),
        lambda meta: (tl.cdiv(N, meta.get("BLOCK")),),
        lambda meta: (tl.cdiv(N, next(iter(meta.values()))),),
    ],
    ids=["item", "arguments", "dict", "unpacked", "get", "values"],
)
def test_a_grid_that_reads_a_constant_follows_it(grid):
    x, o = torch.randn(N), torch.zeros(N)
    interleaved[grid](x, o, N, BLOCK=AUTOS[0])
    torch.testing.assert_close(o, 2 * x)


@tiledsl.jit
def without_a_loop(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
                   BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    c.store((m, n), tl.dot(a.load((m, 0), (BM, BK)), b.load((0, n), (BK, BN))))


def test_a_product_without_a_loop_needs_a_value_for_its_depth():
    a, c = torch.randn(128, 128).bfloat16(), torch.zeros(128, 128)
    grid = lambda meta: (tl.cdiv(128, meta["BM"]), tl.cdiv(128, meta["BN"]))  # noqa: E731
    with pytest.raises(LaunchError, match="BK is picked by the compiler"):
        without_a_loop[grid](a, a, c)
    without_a_loop[grid](a, a, c, BK=128)
    torch.testing.assert_close(c, a.float() @ a.float(), atol=1e-3, rtol=1e-3)


# ---------------------------------------------------------------------- between launches
def follows(meta):
    return (tl.cdiv(N, meta["BLOCK"]),)


@pytest.mark.parametrize("grid", [(16,), [16], 16, torch.Size([16])], ids=repr)
def test_a_program_for_a_function_is_none_for_numbers(monkeypatch, grid):
    """Of the same arguments; a grid that the function gave for a tile may not be that of all."""
    fake = fake_driver.install(monkeypatch)
    by_a_name.forget()
    x, auto = torch.zeros(1024)[:N], tl.auto(64, 256)
    for _ in range(2):
        by_a_name[follows](x, x, N, BLOCK=auto)
    assert [launch.grid for launch in fake.launches] == [(16, 1, 1)] * 2
    for _ in range(2):
        with pytest.raises(LaunchError, match=REFUSED):
            by_a_name[grid](x, x, N, BLOCK=auto)
    with pytest.raises(LaunchError, match=REFUSED):
        by_a_name.bind(x, x, N, BLOCK=auto, grid=grid)
    assert len(fake.launches) == 2
    by_a_name.forget()


def test_a_program_for_numbers_is_one_of_its_own(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    in_steps.forget()
    x, auto = torch.zeros(1024)[:N], tl.auto(64, 256)
    for grid in (lambda _: (3,), (3,), [3], 3, lambda _: (3,)):
        in_steps[grid](x, x, N, BLOCK=auto)
    assert [launch.grid for launch in fake.launches] == [(3, 1, 1)] * 5
    assert len(in_steps.history) == 2
    assert "grid: (3, 1, 1) -> (3, 1, 1), given as numbers" in in_steps.explain_recompiles()
    in_steps.forget()


# ---------------------------------------------------------------------- the analysis
def test_the_analysis_changes_nothing():
    """Nor does a graph say where a constant is from; only extents of tiles do."""
    x = torch.empty(N, device="meta")
    _, request = by_a_name.request_for((x, x, N), {"BLOCK": AUTOS[0]}, (2,))
    constants = probe_constants(request.constants)
    assert isinstance(constants["BLOCK"], AutoInt)
    graph = lower_function(request.fn, request.specs, constants)
    before = print_graph(graph)
    first = shares_of(graph)
    assert first == shares_of(graph)
    assert print_graph(graph) == before
    assert {type(op.value) for op in graph.find(Constant)} <= {int, float, bool}
    plain = lower_function(request.fn, request.specs, {"BLOCK": 64})
    assert shares_of(plain) == first
    assert device_graph(request, constants).facts["picked"].sharing == ("BLOCK",)


def test_a_function_is_given_plain_ints(monkeypatch):
    fake_driver.install(monkeypatch)
    by_a_name.forget()
    x, seen = torch.zeros(1024)[:N], []

    def grid(meta):
        seen.append(type(meta["BLOCK"]))
        return follows(meta)

    by_a_name[grid](x, x, N, BLOCK=AUTOS[0])
    assert seen[-1] is int
    by_a_name.forget()


def test_choices_are_ints():
    assert tl.auto(tl.constexpr(64), 128).choices == (64, 128)
    for wrong in ("64", 64.0, True, None, [64, 128]):
        with pytest.raises(tiledsl.errors.TileError, match=r"tl.auto\(\): choices are ints, got"):
            tl.auto(128, wrong)


def test_heuristics_of_what_is_picked_later():
    even = tiledsl.heuristics({"SPARE": lambda args: args["n"] % args["A"] == 0})(by_two)
    x, o = torch.randn(N), torch.zeros(N)
    with pytest.raises(LaunchError, match=r"SPARE cannot be computed: .*A is picked by the comp"):
        even[lambda meta: (9,)](x, o, N, A=tl.auto(64, 128), B=1)
    with pytest.raises(KeyError):
        even[(9,)](x, o, N, B=1)
