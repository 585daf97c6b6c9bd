"""Both sides of `a if condition else b` at run time, each lowered into a region of its own."""

from __future__ import annotations

import ast
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

from tiledsl.errors import TypeMismatch
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.merge import leaves
from tiledsl.frontend.merge import rebuild
from tiledsl.frontend.merge import same_leaf
from tiledsl.frontend.merge import same_structure
from tiledsl.frontend.scope import Frame
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.broadcasting import common_shape
from tiledsl.ir.broadcasting import shape_of
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import TensorType

WHAT = "if ... else"


class Sides:
    """The values of both sides, and the ops that make them.

    are_pure: no side has an effect, so that both may run.
    """

    def __init__(self, frame: Frame, node: ast.IfExp) -> None:
        self.frame = frame
        self.node = node
        self.regions = (Region(), Region())
        values: list[object] = []
        for region, expression in zip(self.regions, (node.body, node.orelse), strict=True):
            with self._inside(region):
                values.append(evaluate(frame, expression))
        self.values = (values[0], values[1])
        self.are_pure = all(op.effect is Effect.PURE for r in self.regions for op in r.walk())

    @contextmanager
    def _inside(self, region: Region) -> Generator[None]:
        with self.frame.builder.at(region), self.frame.branch(may_return=False):
            yield

    def release(self) -> None:
        """Moves the ops of both sides to where the expression stands."""
        builder = self.frame.builder
        for region in self.regions:
            for op in list(region.ops):
                builder.graph.move_to(op, builder.region)

    def choose(self, condition: Value) -> object:
        """The value of the side that runs. Raises TypeMismatch where the sides do not fit."""
        x, y = self.values
        if not same_structure(x, y):
            raise TypeMismatch(f"{WHAT}: one side is {describe(x)} and the other {describe(y)}")
        pairs = list(zip(leaves(x), leaves(y), strict=True))
        differing = [p for p in pairs if not same_leaf(*p)]
        ends: tuple[list[Value], list[Value]] = ([], [])
        for a, b in differing:
            for side, value in zip(ends, self._alike(a, b), strict=True):
                side.append(value)
        builder = self.frame.mark(self.node)
        for region, values in zip(self.regions, ends, strict=True):
            with builder.at(region):
                builder.add(Yield(tuple(values)))
        types = tuple(v.type for v in ends[0])
        then, orelse = self.regions
        op = builder.add(If(condition, result_types=types, then=then, orelse=orelse))
        results = iter(op.results)
        merged = [a if same_leaf(a, b) else next(results) for a, b in pairs]
        return rebuild(x, iter(merged))

    def _alike(self, a: object, b: object) -> tuple[Value, Value]:
        """Two leaves in their common dtype and shape, each made in its own region."""
        for leaf in (a, b):
            is_tensor = isinstance(leaf, Value) and isinstance(leaf.type, TensorType)
            if is_tensor or not (isinstance(leaf, Value) or is_number(leaf)):
                raise TypeMismatch(
                    f"both sides of `{WHAT}` must be values when its condition is one, "
                    f"got {describe(leaf)}"
                )
        both = (cast("Operand", a), cast("Operand", b))
        dtype = common_dtype(both, WHAT)
        shape = common_shape([shape_of(x) for x in both], WHAT)
        builder = self.frame.mark(self.node)
        made: list[Value] = []
        for region, leaf in zip(self.regions, both, strict=True):
            with builder.at(region):
                value = as_value(builder, leaf, dtype, what=WHAT)
                made.append(broadcast_value(builder, value, shape, WHAT))
        return made[0], made[1]
