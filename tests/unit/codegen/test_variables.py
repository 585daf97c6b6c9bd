"""SSA destruction: what shares a variable, and where copies are needed."""

from __future__ import annotations

from tests.unit.codegen.machine_graphs import Kernel
from tiledsl import dtypes as dt
from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.variables import Variables
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType

I32 = ScalarType(dt.int32)


def kernel() -> tuple[Kernel, Value]:
    k = Kernel("k", num_threads=32)
    k.arg("out", TensorType(1, dt.int32, 0, True, 16))
    return k, k.arg("n", I32)


def keep(k: Kernel, *values: Value) -> None:
    """Uses values so that they are not dropped."""
    for v in values:
        x = k.tile(tile.Splat(v, (1,)), blocked((1,), 1), "x")
        k.op(memory.Store(k.graph.args[0], (k.c(0),), x, block_shape=(1,)))


def body_of(k: Kernel) -> str:
    source = emit_kernel(k.graph).source
    return source[source.index(") {\n") :]


def test_a_counter_is_updated_in_place() -> None:
    k, n = kernel()
    start = k.add(n, 1, "sum")
    with k.loop("i", 0, n, init=(start,), names=("sum",)) as loop:
        k.yield_(k.add(loop.body.args[1], loop.iv, "sum"))
    keep(k, loop.results[0])
    text = body_of(k)
    assert "int sum_1 = n + 1;" in text
    assert "sum_1 = sum_1 + i_1;" in text
    assert "sum_2" not in text


def test_a_swap_goes_through_a_temporary() -> None:
    k, n = kernel()
    a, b = k.add(n, 1, "a"), k.add(n, 2, "b")
    with k.loop("i", 0, n, init=(a, b), names=("a", "b")) as loop:
        k.yield_(loop.body.args[2], loop.body.args[1])
    keep(k, *loop.results)
    lines = [line.strip() for line in body_of(k).splitlines()]
    at = lines.index("const int saved_1 = a_1;")
    assert lines[at + 1 : at + 3] == ["a_1 = b_1;", "b_1 = saved_1;"]


def test_an_initial_value_that_lives_on_is_copied() -> None:
    k, n = kernel()
    a = k.add(n, 1, "a")
    with k.loop("i", 0, n, init=(a,), names=("c",)) as loop:
        k.yield_(k.add(loop.body.args[1], a))
    keep(k, loop.results[0], a)
    text = body_of(k)
    assert "const int a_1 = n + 1;" in text
    assert "int c_1 = a_1;" in text
    assert "c_1 = c_1 + a_1;" in text


def test_loop_bounds_are_not_overwritten() -> None:
    k, n = kernel()
    bound = k.add(n, 1, "bound")
    with k.loop("i", 0, bound, init=(bound,), names=("c",)) as loop:
        k.yield_(k.add(loop.body.args[1], 1))
    keep(k, loop.results[0])
    assert "i_1 < bound_1" in body_of(k)
    assert "int c_1 = bound_1;" in body_of(k)


def test_branches_write_the_result_directly() -> None:
    k, n = kernel()
    branch = control.If(k.cmp("lt", n, 3), result_types=(I32,))
    k.op(branch)
    branch.results[0].name = "r"
    for region, by in ((branch.then, 1), (branch.orelse, 2)):
        with k.inside(region):
            k.yield_(k.add(n, by))
    keep(k, branch.results[0])
    lines = [line.strip() for line in body_of(k).splitlines()]
    assert [x for x in lines if "r_1" in x][:3] == ["int r_1;", "r_1 = n + 1;", "r_1 = n + 2;"]


def test_while_loops() -> None:
    k, n = kernel()
    op = control.While((k.c(0), n))
    k.op(op)
    for region in op.regions:
        region.add_arg(I32, "i")
        region.add_arg(I32, "s")
    with k.inside(op.before):
        k.yield_(k.cmp("lt", op.before.args[0], 3), *op.before.args)
    with k.inside(op.body):
        i, s = op.body.args
        k.yield_(k.add(i, 1), k.add(s, i))
    keep(k, op.results[1])
    text = body_of(k)
    assert "while (true) {" in text
    assert "if (!t_1) break;" in text
    assert "s_1 = s_1 + i_1;" in text


def accumulator_kernel(*, reused: bool) -> Kernel:
    k = Kernel("k", num_threads=128, smem_bytes=16384)
    out = k.arg("out", TensorType(2, dt.float32, 1, True, 16))
    buffers = [
        k.b.value(smem.Buffer(SmemType((64, 64), dt.bfloat16, 1), 1, offset_bytes=8192 * i), n)
        for i, n in enumerate("ab")
    ]
    acc = k.tile(tile.Splat(k.c(0.0, dt.float32), (64, 64)), mma_accumulator(64, 64), "acc")
    k.op(mma.Fence())
    new = k.b.value(mma.Issue(*buffers, acc))
    k.op(mma.Commit())
    done = k.b.add(mma.Wait((new,))).results[0]
    for v in (done, acc) if reused else (done,):
        k.op(memory.Store(out, (k.c(0), k.c(0)), v, block_shape=(64, 64)))
    return k


def test_accumulators_are_pinned_and_updated_in_place() -> None:
    text = body_of(accumulator_kernel(reused=False))
    assert "copy(" not in text
    assert text.index("fill(acc_1, 0.0f);\n  keep(acc_1);") < text.index("(acc_1, a_1, b_1, 1);")


def test_an_accumulator_that_lives_on_is_copied_first() -> None:
    text = body_of(accumulator_kernel(reused=True))
    assert text.index("copy(acc_2, acc_1);") < text.index("(acc_2, a_1, b_1, 1);")
    assert "store_vector<2>(acc_1," in text


def test_a_tile_is_not_overwritten_while_other_registers_of_it_are_read() -> None:
    """reversed = x[3 - i] may not be written into x's registers."""
    from tiledsl.ir.layout import Digit
    from tiledsl.ir.layout import Layout
    from tiledsl.ir.layout import Unit

    straight = Layout(((Digit(2, Unit.REG, 1), Digit(2, Unit.REG, 2)),), 4, 1)
    crossed = Layout(((Digit(2, Unit.REG, 2), Digit(2, Unit.REG, 1)),), 4, 1)
    k, n = kernel()
    start = k.tile(tile.Splat(n, (4,)), straight, "x")
    with k.loop("i", 0, n, init=(start,), names=("x",)) as loop:
        carried = loop.body.args[1]
        moved = k.map(
            (carried,), dt.int32, crossed, (4,), lambda b, a: [b.value(ew.Add(a[0], a[0]))], "y"
        )
        back = k.map(
            (moved,), dt.int32, straight, (4,), lambda b, a: [b.value(ew.Add(a[0], a[0]))], "x"
        )
        k.yield_(back)
    variables = Variables(k.graph)
    assert variables.root(moved) is not variables.root(carried)
    assert "i / 2 + i % 2 * 2" in body_of(k) or "i % 2 * 2 + i / 2" in body_of(k)


def test_operands_are_kept_apart_once_however_deep_loops_lie(monkeypatch) -> None:
    """Liveness walks a loop twice, and four times in a loop; what an op asks for is asked once."""
    k, n = kernel()
    start = k.add(n, 1, "sum")
    with k.loop("i", 0, n, init=(start,), names=("sum",)) as outer:
        with k.loop("j", 0, n, init=(outer.body.args[1],), names=("sum",)) as inner:
            k.yield_(k.add(inner.body.args[1], inner.iv, "sum"))
        k.yield_(inner.results[0])
    keep(k, outer.results[0])
    seen: list[int] = []
    asked = Variables._keep_apart
    monkeypatch.setattr(Variables, "_keep_apart", lambda v, op: seen.append(op.id) or asked(v, op))
    Variables(k.graph)
    assert sorted(seen) == sorted({op.id for op in k.graph.walk()})
