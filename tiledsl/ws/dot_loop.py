"""A loop around dots, and what it does with their products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.types import TileType
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.operands import operand_source


@dataclass(frozen=True)
class Made:
    """How an operand is made: of which loaded tile, by which ops of the loop, in program order.

    vectors: loaded numbers for the rows, scales of groups.
    """

    load: Load
    ops: tuple[Op, ...]
    vectors: tuple[Load, ...] = ()


@dataclass(frozen=True)
class DotLoop:
    """A loop whose dots only accumulate.

    Every dot's accumulator is carried by the loop and read by nothing else in it.
    loads: operand loads inside the loop, in program order. zero_init: per dot (of `heads`), whether
    it starts from zeros.
    partial: instead, every product starts from zero in each iteration, and CUDA cores go on with
    it: f32 sums of fp8 products, sums of scaled products.
    beside: ops that make sums of rows of loaded tiles beside the products, by id.
    made: by dot, how its left operand is made of a loaded tile.
    """

    loop: For
    dots: tuple[Dot, ...]
    loads: tuple[OperandLoad, ...]
    zero_init: tuple[bool, ...]
    partial: bool = False
    beside: frozenset[int] = frozenset()
    made: Mapping[int, Made] = field(default_factory=dict[int, Made])

    @property
    def heads(self) -> tuple[Dot, ...]:
        """The dots whose accumulator the loop carries: others add to the dot before."""
        return tuple(d for d in self.dots if not self.made or d.acc in self.loop.carried)

    def source(self, dot: Dot, side: int) -> tuple[Load | pointer.Load, bool]:
        """The load behind an operand, and whether it is transposed in between."""
        if side == 0 and dot.id in self.made:
            return self.made[dot.id].load, False
        found = operand_source(dot.b if side else dot.a)
        assert found is not None
        return found

    @property
    def sums(self) -> tuple[int, ...]:
        """Carried values that dots add up, or, in a partial loop, that are only added to."""
        if not self.partial:
            return tuple(self.loop.carried.index(d.acc) for d in self.heads)
        return tuple(i for i in range(len(self.loop.carried)) if is_sum(self.loop, i, self.dots))

    @property
    def can_split(self) -> bool:
        """Whether the sums of two halves of the loop add up to the sum of the whole.

        Anything else that the loop carries would have to start from the middle in the second half.
        """
        starts = (
            all(is_zero_tile(v) for v in self.loop.init) if self.partial else all(self.zero_init)
        )
        return starts and len(self.sums) == len(self.loop.carried)


def always_runs(loop: For) -> bool:
    """Whether a loop surely has an iteration: it ends at an extent of a tensor with a tensor map.

    A tensor without elements has none, but may be one of a list.
    """
    upper = loop.upper.defining_op
    if constant_value(loop.lower) != 0 or not isinstance(upper, Shape):
        return False
    if isinstance(upper.tensor.defining_op, Pick):
        return False
    return tensor_type(upper.tensor, "shape").tma


def is_zero_tile(value: Value) -> bool:
    """True for a tile of constant zeros."""
    op = value.defining_op
    return isinstance(op, Splat) and constant_value(op.a) == 0


NEVER = 1 << 20
"""No K is as large."""
PROMOTION = (
    "fp8 products go to f32 sums every so often in K, which is not done in a loop with register "
    "operands or loads outside of it; max_num_imprecise_acc=2**20 lets the tensor core add them up"
)


def needs_promotion(dot: Dot) -> bool:
    """Whether the tensor core may not add up all products of a dot."""
    if not isinstance(dot.a.type, TileType) or not dot.a.type.dtype.is_fp8:
        return False
    if is_zero_tile(dot.acc) and dot.a.type.shape[1] <= dot.promote:
        return False
    return 0 < dot.promote < NEVER


def is_sum(loop: For, index: int, dots: tuple[Dot, ...]) -> bool:
    """Whether a loop only adds to a carried tile: by a dot, or by an addition of something else."""
    arg, end = loop.carried[index], yielded(loop.body)[index]
    op = end.defining_op
    uses = [o for o in loop.body.walk() if arg in o.operands]
    if not isinstance(arg.type, TileType) or uses != [op]:
        return False
    if isinstance(op, Dot):
        return op in dots and op.acc is arg
    return isinstance(op, Add) and (op.a is arg) != (op.b is arg)
