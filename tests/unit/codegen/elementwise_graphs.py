"""Kernels that apply one elementwise op to whole tiles, in every dtype that the op takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.unit.codegen.machine_graphs import Kernel
from tiledsl import dtypes as dt
from tiledsl.dtypes import DType
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import blocked
from tiledsl.ir.op import Op
from tiledsl.ir.op import op_class
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import tile
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType

N = 512
INTS = tuple(d for d in dt.ALL if d.is_int)
FLOATS = tuple(d for d in dt.ALL if d.is_float)
BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "floordiv",
    "mod",
    "min",
    "max",
    "and",
    "or",
    "xor",
    "shl",
    "shr",
)
UNARY = (
    "neg", "not", "abs", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil",
)  # fmt: skip
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Case:
    """One op on one dtype. attributes: of the op."""

    opcode: str
    dtype: DType
    attributes: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        extra = "".join(f"-{v}" for _, v in self.attributes)
        return f"{self.opcode.partition('.')[2]}-{self.dtype}{extra}"

    def build(self, *values: object) -> Op:
        """The op on some operands."""
        return op_class(self.opcode)(
            **dict(zip(self.operand_names, values, strict=False)), **dict(self.attributes)
        )

    @property
    def operand_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in op_class(self.opcode).fields if f.kind == "operand")

    @property
    def operand_dtypes(self) -> tuple[DType, ...]:
        names = self.operand_names
        return tuple(dt.int1 if n == "condition" else self.dtype for n in names)

    @property
    def out_dtype(self) -> DType:
        if self.opcode == "elementwise.compare":
            return dt.int1
        return dict(self.attributes).get("dtype", self.dtype)


def cases() -> Iterator[Case]:
    """Every op with every dtype that it allows."""
    for name in (*BINARY, *UNARY):
        allowed = op_class(f"elementwise.{name}").allowed
        yield from (Case(f"elementwise.{name}", d) for d in dt.ALL if d.kind in allowed)
    for name in ("min", "max"):
        yield from (Case(f"elementwise.{name}", d, (("propagate_nan", True),)) for d in FLOATS)
    for name in ("exp", "exp2"):
        yield from (Case(f"elementwise.{name}", d, (("fast", True),)) for d in FLOATS)
    for predicate in PREDICATES:
        yield from (Case("elementwise.compare", d, (("predicate", predicate),)) for d in dt.ALL)
    yield from (Case("elementwise.select", d) for d in dt.ALL)
    yield from (Case("elementwise.fma", d) for d in FLOATS)
    yield from (Case("elementwise.cast", a, (("dtype", b),)) for a in dt.ALL for b in dt.ALL)
    yield from (
        Case("elementwise.bitcast", a, (("dtype", b),))
        for a in dt.ALL
        for b in dt.ALL
        if a.bits == b.bits and a != b
    )


def kernel(case: Case, n: int = N, warps: int = 4, vector: int = 4) -> TileGraph:
    """out = op(x0, x1, ...) on n elements, of which a thread has `vector` side by side."""
    k = Kernel("elementwise", num_threads=32 * warps)
    zero = k.c(0)
    layout = blocked((n,), warps, vector=vector)
    inputs = []
    for i, dtype in enumerate(case.operand_dtypes):
        x = k.arg(f"x{i}", TensorType(1, dtype, 0, False, 16))
        inputs.append(k.tile(memory.Load(x, (zero,), block_shape=(n,)), layout, f"x{i}"))
    out = k.arg("out", TensorType(1, case.out_dtype, 0, False, 16))
    op = tile.Map(
        tuple(inputs),
        shape=(n,),
        layout=layout,
        follows=((0,),) * len(inputs),
        out_dtypes=(case.out_dtype,),
    )
    k.op(op)
    args = [op.body.add_arg(ScalarType(v.type.dtype)) for v in inputs]
    op.body.add_arg(ScalarType(dt.int32))
    with k.inside(op.body):
        k.op(control.Yield((k.b.value(case.build(*args)),)))
    k.op(memory.Store(out, (zero,), op.results[0], block_shape=(n,)))
    return k.graph


def constants() -> list[tuple[object, DType]]:
    """Awkward constants."""
    floats = [
        0.0,
        -0.0,
        0.1,
        1e-40,
        3.4e38,
        float("inf"),
        float("-inf"),
        float("nan"),
        1.0,
        448.0,
        1e300,
    ]
    out: list[tuple[object, DType]] = [(v, d) for d in FLOATS for v in floats]
    for d in INTS:
        top = 1 << d.bits
        out += [(v, d) for v in (0, 1, -1, 7, top // 2 - 1, top // 2, top - 1, -(top // 2))]
    return [*out, (True, dt.int1), (False, dt.int1)]


def constant_kernel(values: list[tuple[object, DType]]) -> TileGraph:
    """Every constant, compared with itself, stored; for compiling only."""
    k = Kernel("constants", num_threads=32)
    zero = k.c(0)
    layout = blocked((32,), 1)
    for i, (value, dtype) in enumerate(values):
        out = k.arg(f"out{i}", TensorType(1, dtype, 0, False, 16))
        splat = k.tile(tile.Splat(k.b.value(ew.Constant(value, dtype)), (32,)), layout, "x")
        k.op(memory.Store(out, (zero,), splat, block_shape=(32,)))
    return k.graph
