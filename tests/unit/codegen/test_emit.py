"""The emitted text: what it says, how it is laid out, and that it is always the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.unit.codegen import layout_graphs as lg
from tests.unit.codegen import machine_graphs as mg
from tiledsl import dtypes as dt
from tiledsl.codegen.cpp import MAX_COLUMNS
from tiledsl.codegen.emit import render_macro
from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import CodegenError
from tiledsl.errors import SourceLoc
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import blocked
from tiledsl.ir.op import Level
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops import tile
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType

ROOT = Path(__file__).parents[3]
KERNELS = {
    "vector_add": mg.vector_add,
    "single_role_dot": mg.single_role_dot,
    "gemm_ping_pong": mg.ping_pong_gemm,
    "gemm_cooperative": mg.cooperative_gemm,
}


def kernel_text(graph: TileGraph) -> str:
    """The kernel without the prelude."""
    source = emit_kernel(graph).source
    return source[source.index("using namespace tdsl;") :]


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str, golden: Golden) -> None:
    golden(kernel_text(KERNELS[name]()), f"kernels/{name}.cu")


@pytest.mark.parametrize("make", [*KERNELS.values(), *(c.graph for c in lg.CASES)])
def test_lines_are_short(make: Callable[[], TileGraph]) -> None:
    text = kernel_text(make())
    assert max(map(len, text.splitlines())) <= MAX_COLUMNS
    assert not re.search(r"[ \t]$", text, re.M)


@pytest.mark.parametrize("name", ["gemm_ping_pong", "gemm_cooperative"])
def test_gemms_copy_no_tiles(name: str) -> None:
    """Accumulators and the packed result stay in their registers across loops, branches and waits."""
    text = kernel_text(KERNELS[name]())
    assert "copy(" not in text
    assert text.count("float acc_") == 1


def test_parameters_follow_the_use() -> None:
    params = emit_kernel(mg.ping_pong_gemm()).params
    assert [type(p) for p in params] == [
        TensorMapParam, ShapeParam, TensorMapParam, TensorMapParam, GridParam, GridParam, GridParam,
    ]  # fmt: skip
    assert params[2] == TensorMapParam("b_map", "b", dt.bfloat16, (1, 0), (64, 96))
    (case,) = [c for c in lg.CASES if c.name == "column-major"]
    names = [(type(p), p.name) for p in emit_kernel(case.graph()).params if p.arg == "x"]
    assert names == [
        (PointerParam, "x"), (ShapeParam, "x_shape_0"), (ShapeParam, "x_shape_1"), (StrideParam, "x_stride_1"),
    ]  # fmt: skip


def test_names_avoid_words_of_cpp_and_of_the_headers() -> None:
    k = mg.Kernel("words", num_threads=32)
    names = ("int", "fill", "lane", "x")
    tensors = [k.arg(n, TensorType(1, dt.float32, 0, True, 16)) for n in names]
    layout = blocked((32,), 1)
    for t in tensors:
        k.op(
            memory.Store(
                t,
                (k.c(0),),
                k.tile(tile.Splat(k.c(1.0, dt.float32), (32,)), layout, "x"),
                block_shape=(32,),
            )
        )
    module = emit_kernel(k.graph)
    pointers = [p for p in module.params if isinstance(p, PointerParam)]
    assert [(p.name, p.arg) for p in pointers] == [
        ("int_arg", "int"), ("fill_arg", "fill"), ("lane_arg", "lane"), ("x", "x"),
    ]  # fmt: skip
    assert "float x_1[1];" in module.source


def test_source_lines_are_shown_once_each(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("a = pid + 1\nb = a * a\n")
    k = mg.Kernel("located", num_threads=32)
    n = k.arg("n", ScalarType(dt.int32))
    out = k.arg("out", TensorType(1, dt.int32, 0, True, 16))
    with k.b.located(SourceLoc(str(path), 1)):
        a = k.add(n, 1, "a")
        a = k.add(a, 2, "a")
    with k.b.located(SourceLoc(str(path), 2)):
        b = k.mul(a, a, "b")
        k.op(
            memory.Store(
                out, (b,), k.tile(tile.Splat(b, (1,)), blocked((1,), 1), "x"), block_shape=(1,)
            )
        )
    text = kernel_text(k.graph)
    assert text.count("// user.py:1  a = pid + 1\n") == 1
    assert text.count("// user.py:2  b = a * a\n") == 1
    assert text.index("user.py:1") < text.index("a_1 = n + 1") < text.index("user.py:2")


def test_a_source_line_that_ends_in_a_backslash_does_not_hide_the_statement(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text("a, b = n + 1, \\\n    n + 2\n")
    k = mg.Kernel("continued", num_threads=32)
    n = k.arg("n", ScalarType(dt.int32))
    out = k.arg("out", TensorType(1, dt.int32, 0, True, 16))
    with k.b.located(SourceLoc(str(path), 1)):
        a = k.add(n, 1, "a")
        value = k.tile(tile.Splat(a, (1,)), blocked((1,), 1), "x")
        k.op(memory.Store(out, (a,), value, block_shape=(1,)))
    text = kernel_text(k.graph)
    assert "// user.py:1  a, b = n + 1,\n" in text
    assert "\\\n" not in text


def test_roles_form_a_chain() -> None:
    k = mg.Kernel("roles", num_threads=512)
    for op in (
        role.Role("first", 0, 1, 24),
        role.Role("middle", 1, 2, 232, grow=True),
        role.Role("last", 3, 1, single_thread=True),
    ):
        k.op(op)
        with k.inside(op.body):
            k.op(memory.Store(*_store(k)))
    text = kernel_text(k.graph)
    heads = re.findall(r"^  (?:\} )?((?:else )?if \(warpgroup[^{]*\)|else) \{$", text, re.M)
    assert heads == ["if (warpgroup == 0)", "else if (warpgroup >= 1 && warpgroup < 3)", "else"]
    assert "reg_dec<24>();" in text
    assert "reg_inc<232>();" in text
    assert "const u32 warp = warp_id() - 4;" in text
    assert "if (warp_id() == 12 && elect_one()) {" in text


def _store(k: mg.Kernel) -> tuple[object, ...]:
    out = k.arg(f"o{len(k.graph.args)}", TensorType(1, dt.int32, 0, True, 16))
    value = k.tile(tile.Splat(k.c(1), (512,)), blocked((512,), 8), "x")
    return (out, (k.c(0),), value, (512,))


def test_split_k_divides_axis_0() -> None:
    from tiledsl.codegen.module import GridSpec

    k = mg.Kernel(
        "split", num_threads=32, cluster_size=2, grid=GridSpec("plain", split_k=2, cluster_size=2)
    )
    out = k.arg("out", TensorType(1, dt.int32, 0, True, 16))
    for axis in (0, 1):
        pid = k.b.value(program.ProgramId(axis))
        k.op(
            memory.Store(
                out, (pid,), k.tile(tile.Splat(pid, (1,)), blocked((1,), 1), "x"), block_shape=(1,)
            )
        )
    text = kernel_text(k.graph)
    assert "(int)(blockIdx.x / 2)" in text
    assert "(int)blockIdx.y" in text
    assert "__cluster_dims__(2, 1, 1)" in text


def test_small_floats_are_rounded_once() -> None:
    """A cast that a map yields is left to the packing; one that is used again is rounded where it stands."""
    bf16 = dt.bfloat16
    k = mg.Kernel("rounding", num_threads=32)
    layout = blocked((64,), 1, vector=2)
    x = k.arg("x", TensorType(1, dt.float32, 0, True, 16))
    out = k.arg("out", TensorType(1, bf16, 0, True, 16))
    v = k.tile(memory.Load(x, (k.c(0),), block_shape=(64,)), layout, "v")

    def once(b: object, args: object) -> list[object]:
        return [b.value(ew.Cast(args[0], bf16))]

    def twice(b: object, args: object) -> list[object]:
        y = b.value(ew.Cast(args[0], bf16), "y")
        return [b.value(ew.Mul(y, y))]

    for body in (once, twice):
        k.op(
            memory.Store(
                out, (k.c(0),), k.map((v,), bf16, layout, (64,), body, "y"), block_shape=(64,)
            )
        )
    text = kernel_text(k.graph)
    assert "return v_1[i];" in text
    assert "const float y_3 = round_to<bf16>(v_1[i]);" in text
    assert "return y_3 * y_3;" in text
    assert text.count("round_to") == 1


def test_scalar_arguments() -> None:
    k = mg.Kernel("scalars", num_threads=32)
    out = k.arg("out", TensorType(1, dt.float32, 0, True, 16))
    alpha = k.arg("alpha", ScalarType(dt.bfloat16))
    wide = k.b.value(ew.Cast(alpha, dt.float32), "wide")
    k.op(
        memory.Store(
            out, (k.c(0),), k.tile(tile.Splat(wide, (1,)), blocked((1,), 1), "x"), block_shape=(1,)
        )
    )
    module = emit_kernel(k.graph)
    assert ScalarParam("alpha", "alpha", dt.bfloat16) in module.params
    assert "bf16 alpha" in module.source
    assert "const float wide_1 = to_float(alpha);" in module.source


def test_errors_carry_the_place() -> None:
    k = mg.Kernel("bad", num_threads=32)
    out = k.arg("out", TensorType(1, dt.float32, 0, True, 16))
    loc = SourceLoc("user.py", 7, 3)
    with k.b.located(loc):
        x = k.b.value(tile.Splat(k.c(1.0, dt.float32), (32,)))
        k.op(memory.Store(out, (k.c(0),), x, block_shape=(32,)))
    with pytest.raises(CodegenError, match="has no layout") as caught:
        emit_kernel(k.graph)
    assert caught.value.loc == loc
    with pytest.raises(CodegenError, match="expected MACHINE"):
        emit_kernel(TileGraph("early", Level.TILE))


def test_a_layout_change_needs_a_conversion() -> None:
    k = mg.Kernel("mismatch", num_threads=128)
    out = k.arg("out", TensorType(1, dt.float32, 0, True, 16))
    v = k.tile(tile.Splat(k.c(1.0, dt.float32), (256,)), blocked((256,), 4, vector=2), "v")
    layout = blocked((256,), 4)
    total = k.map((v,), dt.float32, layout, (256,), lambda b, a: [b.value(ew.Neg(a[0]))], "total")
    k.op(memory.Store(out, (k.c(0),), total, block_shape=(256,)))
    with pytest.raises(CodegenError, match="change its layout"):
        emit_kernel(k.graph)


def test_unused_branches_leave_no_text() -> None:
    k = mg.Kernel("quiet", num_threads=32)
    n = k.arg("n", ScalarType(dt.int32))
    branch = control.If(k.cmp("lt", n, 3))
    k.op(branch)
    for region in branch.regions:
        with k.inside(region):
            k.yield_()
    assert "if (" not in kernel_text(k.graph)


def test_macros_are_found_by_the_opcode() -> None:
    from tiledsl.codegen.contexts.barrier import NoContext

    assert render_macro("barrier.cta", NoContext()) == "block_sync();\n"
