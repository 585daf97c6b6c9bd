"""A dot of a flow loop, and what its operands are."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.op import Value
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.types import SmemType
from tiledsl.ws.bounded import Bound
from tiledsl.ws.operands import OperandLoad


@dataclass(frozen=True)
class StagedOperand:
    """A computed operand that the consumers write to shared memory for its dot.

    side: 0 for a, 1 for b. source: the tile that is written, as `smem` says. is_transposed: the dot
    reads its transpose. key: of the buffer.
    """

    side: int
    source: Value
    is_transposed: bool
    smem: SmemType
    key: int


@dataclass(frozen=True)
class FixedOperand:
    """A right operand that is one number throughout, written to shared memory once.

    value: the number. smem: of the tile [N, K] that is written, of which the dot reads the
    transpose. key: of the buffer. name: of the operand.
    """

    value: float
    smem: SmemType
    key: int
    name: str


@dataclass(frozen=True)
class Rounded:
    """How a left operand of 8-bit elements is made from paired columns.

    cast: the op that rounds. sums: reshapes of the same tile whose groups of columns are sums.
    """

    cast: int
    sums: frozenset[int]


@dataclass(frozen=True)
class FlowDot:
    """A dot of a flow loop.

    zero_acc: it starts from zeros. loads: operand loads that it reads. register_a: its left operand
    is a register tile. staged: operands that are written to shared memory first. bounds: of loads
    whose last rows are cleared first. rounded: where its left operand comes from a product whose
    right operand has paired rows. fixed: its right operand, where that is one number.
    """

    dot: Dot
    zero_acc: bool
    loads: tuple[OperandLoad, ...]
    register_a: bool
    staged: tuple[StagedOperand, ...] = ()
    bounds: tuple[Bound, ...] = ()
    rounded: Rounded | None = None
    fixed: FixedOperand | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The register tiles and scalars that it needs before it starts."""
        left = (self.dot.a,) if self.register_a else ()
        acc = () if self.zero_acc else (self.dot.acc,)
        scalars = [v for b in self.bounds for v in b.scalars]
        return (*left, *(s.source for s in self.staged), *acc, *scalars)
