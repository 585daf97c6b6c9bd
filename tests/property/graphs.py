"""Random TILE graphs: straight-line code, loops, branches, loads and stores, over odd values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field

import numpy as np
from hypothesis import strategies as st

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.errors import SourceLoc
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import program
from tiledsl.ir.ops import tile
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type

EXTENT = 8
TENSOR_DTYPES = (dtypes.int32, dtypes.float32, dtypes.bfloat16)
DTYPES = (*TENSOR_DTYPES, dtypes.int1, dtypes.int8, dtypes.uint8, dtypes.int64, dtypes.float16)
SHAPES = ((4,), (2, 4), (1, 4), (4, 2))
FLOAT_OPS = (ew.Add, ew.Sub, ew.Mul, ew.Div, ew.Min, ew.Max)
INT_OPS = (
    ew.Add,
    ew.Sub,
    ew.Mul,
    ew.FloorDiv,
    ew.Mod,
    ew.Min,
    ew.Max,
    ew.And,
    ew.Or,
    ew.Xor,
    ew.Shl,
    ew.Shr,
)
BOOL_OPS = (ew.And, ew.Or, ew.Xor)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, float("inf"), float("-inf"), float("nan"), 1e-3, 70000.0)
INTS = (0, 1, -1, 2, 3, 7, 31, 32, 127, -128, 255, 2**31 - 1, -(2**31))


@dataclass
class _Maker:
    """Draws ops; `scope` holds the values that may be used."""

    draw: st.DrawFn
    build: Builder
    scope: list[Value]
    tensors: list[Value]
    depth: int = 0
    line: int = field(default=1)

    def of_type(self, accept: Callable[[Type], bool]) -> Value | None:
        found = [v for v in self.scope if accept(v.type)]
        return self.draw(st.sampled_from(found)) if found else None

    def any_value(self) -> Value:
        return self.draw(st.sampled_from(self.scope))

    def add(self, op: object) -> Value:
        self.line += 1
        self.build.loc = SourceLoc("random.py", self.line, self.line % 7)
        value = self.build.value(op)  # type: ignore[arg-type]
        value.name = self.draw(st.sampled_from(["", "x", "acc", "a_1"]))
        self.scope.append(value)
        return value

    # ------------------------------------------------------------------ single ops
    def constant(self, dtype: DType | None = None) -> Value:
        dtype = dtype or self.draw(st.sampled_from(DTYPES))
        numbers = FLOATS if dtype.is_float else INTS if dtype.is_int else (True, False)
        return self.add(ew.Constant(self.draw(st.sampled_from(numbers)), dtype))

    def binary(self) -> None:
        a = self.any_value()
        dtype = a.type.dtype  # type: ignore[attr-defined]
        b = self.of_type(lambda t: t == a.type) or a
        classes = FLOAT_OPS if dtype.is_float else INT_OPS if dtype.is_int else BOOL_OPS
        cls = self.draw(st.sampled_from(classes))
        nan = {"propagate_nan": self.draw(st.booleans())} if cls in (ew.Min, ew.Max) else {}
        self.add(cls(a, b, **nan))

    def unary(self) -> None:
        a = self.any_value()
        dtype = a.type.dtype  # type: ignore[attr-defined]
        choices = (ew.Neg, ew.Abs, ew.Floor) if dtype.is_float else (ew.Not, ew.Neg, ew.Abs)
        self.add(self.draw(st.sampled_from(choices if dtype.kind != "bool" else (ew.Not,)))(a))

    def cast(self) -> None:
        self.add(ew.Cast(self.any_value(), self.draw(st.sampled_from(DTYPES))))

    def compare(self) -> None:
        a = self.any_value()
        b = self.of_type(lambda t: t == a.type) or a
        self.add(ew.Compare(self.draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])), a, b))

    def select(self) -> None:
        a = self.any_value()
        b = self.of_type(lambda t: t == a.type) or a
        condition = self.of_type(lambda t: t == ew.like(a.type, dtypes.int1))
        if condition is not None:
            self.add(ew.Select(condition, a, b))

    def shape(self) -> None:
        a = self.any_value()
        if isinstance(a.type, ScalarType):
            self.add(tile.Splat(a, self.draw(st.sampled_from(SHAPES))))
            return
        assert isinstance(a.type, TileType)
        rank, shape = a.type.rank, a.type.shape
        match self.draw(st.integers(0, 3)):
            case 0 if rank < 3:
                self.add(tile.ExpandDims(a, self.draw(st.integers(0, rank))))
            case 1:
                grown = tuple(self.draw(st.sampled_from([1, 2])) if n == 1 else n for n in shape)
                self.add(tile.Broadcast(a, grown))
            case 2:
                flat = self.draw(st.sampled_from([shape, (a.type.num_elements,), shape[::-1]]))
                self.add(tile.Reshape(a, flat))
            case _:
                self.add(tile.Transpose(a, tuple(self.draw(st.permutations(range(rank))))))

    def program(self) -> None:
        cls = self.draw(st.sampled_from([program.ProgramId, program.NumPrograms]))
        self.add(cls(self.draw(st.integers(0, 2))))

    def offset(self) -> Value:
        return self.of_type(lambda t: t == ScalarType(dtypes.int32)) or self.constant(dtypes.int32)

    def load(self) -> None:
        tensor = self.draw(st.sampled_from(self.tensors))
        other = self.of_type(lambda t: t == ScalarType(tensor.type.dtype))  # type: ignore[attr-defined]
        self.add(memory.Load(tensor, (self.offset(),), other, block_shape=(4,)))

    def store(self) -> None:
        tensor = self.draw(st.sampled_from(self.tensors))
        wanted = TileType((4,), tensor.type.dtype)  # type: ignore[attr-defined]
        value = self.of_type(lambda t: t == wanted)
        if value is not None:
            self.build.add(memory.Store(tensor, (self.offset(),), value, block_shape=(4,)))

    # ------------------------------------------------------------------ control flow
    def carried(self) -> list[Value]:
        return self.draw(st.lists(st.sampled_from(self.scope), max_size=3))

    def inside(
        self, region: Region, extra: list[Value], types: list[Type], head: list[Value]
    ) -> None:
        """Fills a region with a few ops and a yield of `head` and values of the given types."""
        outer, self.scope = self.scope, [*self.scope, *extra]
        self.depth += 1
        with self.build.at(region):
            self.ops(self.draw(st.integers(0, 4)))
            values = [self.of_type(lambda t, want=want: t == want) for want in types]
            self.build.add(control.Yield((*head, *(v for v in values if v is not None))))
        self.depth -= 1
        self.scope = outer

    def for_loop(self) -> None:
        init = self.carried()
        bounds = [
            self.constant_int(n)
            for n in self.draw(st.sampled_from([(0, 0, 1), (0, 1, 1), (0, 3, 1), (2, -2, -2)]))
        ]
        if self.draw(st.booleans()):
            bounds[1] = self.small
        body = Region()
        args = [body.add_arg(ScalarType(dtypes.int32), "k"), *(body.add_arg(v.type) for v in init)]
        self.inside(body, args, [v.type for v in init], [])
        op = self.build.add(control.For(*bounds, tuple(init), body=body))
        self.scope += op.results

    def if_else(self) -> None:
        condition = self.of_type(lambda t: t == ScalarType(dtypes.int1)) or self.constant(
            dtypes.int1
        )
        types = [v.type for v in self.carried()]
        then, orelse = Region(), Region()
        self.inside(then, [], types, [])
        self.inside(orelse, [], types, [])
        op = self.build.add(control.If(condition, then, orelse, tuple(types)))
        self.scope += op.results

    def while_loop(self) -> None:
        zero, init = self.constant_int(0), self.carried()
        one = self.constant_int(1)
        types = [zero.type, *(v.type for v in init)]
        before, body = Region(), Region()
        for t in types:
            before.add_arg(t)
            body.add_arg(t)
        with self.build.at(before):
            go = self.build.value(ew.Compare("lt", before.args[0], self.small))
        self.inside(before, before.args[1:], types[1:], [go, before.args[0]])
        with self.build.at(body):
            count = self.build.value(ew.Add(body.args[0], one))
        self.inside(body, body.args, types[1:], [count])
        op = self.build.add(control.While((zero, *init), before, body))
        self.scope += op.results

    def constant_int(self, number: int) -> Value:
        return self.add(ew.Constant(number, dtypes.int32))

    def ops(self, count: int) -> None:
        simple = [self.constant, self.binary, self.binary, self.binary, self.unary, self.cast, self.compare,
                  self.select, self.shape, self.shape, self.program, self.load, self.store]  # fmt: skip
        nested = [self.for_loop, self.if_else, self.while_loop] if self.depth < 2 else []
        for _ in range(count):
            self.draw(st.sampled_from([*simple, *nested]))()

    @property
    def small(self) -> Value:
        """A run-time bound: the last argument, which tests set to 0..3."""
        return self.build.graph.args[-1]


@st.composite
def graphs(draw: st.DrawFn) -> TileGraph:
    """A graph with one tensor per dtype of TENSOR_DTYPES and two scalars, `f` (f32) and `n` (i32)."""
    graph = TileGraph("random")
    tensors = [
        graph.body.add_arg(TensorType(1, d, 0, tma=True, align_bytes=16), f"t_{d}")
        for d in TENSOR_DTYPES
    ]
    scalars = [
        graph.body.add_arg(ScalarType(dtypes.float32), "f"),
        graph.body.add_arg(ScalarType(dtypes.int32), "n"),
    ]
    maker = _Maker(draw, Builder(graph), list(scalars), tensors)
    maker.load()
    maker.ops(draw(st.integers(1, 14)))
    for _ in range(2):
        maker.store()
    return graph


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, object]:
    """Arguments for such a graph, special values among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    args: dict[str, object] = {"f": draw(st.sampled_from(FLOATS)), "n": draw(st.integers(0, 3))}
    for dtype in TENSOR_DTYPES:
        pool = np.array(FLOATS if dtype.is_float else INTS)
        args[f"t_{dtype}"] = rng.choice(pool, EXTENT).astype(dtype.numpy)
    return args
