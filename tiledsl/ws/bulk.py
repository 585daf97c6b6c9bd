"""Where bulk copies of a tensor map may start, and bulk stores end.

Along the contiguous dimension, a bulk copy starts at a multiple of 16 bytes: at any other place it
is an illegal instruction, and so is a bulk store that starts before the tensor in any dimension. A
bulk store writes whole 16 bytes of a row: what is left of them behind the extent is overwritten,
while bulk loads end anywhere. Ref: measured on an H200; the PTX ISA does not say so.

Starts are known by divisors and signs (ir/analysis/axis_info.py). One thing is taken on trust: that
the difference of two computed indexes, neither of them below 0, is not below 0 either. Where it is,
the launch ends with an illegal instruction, not with wrong numbers.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import graph_of
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.types import ScalarType

BULK_BYTES = TMA_ALIGN_BYTES


class Starts:
    """What is known of where the blocks of a graph's accesses start."""

    def __init__(self, graph: TileGraph | None) -> None:
        self.graph = graph
        self.divisors: dict[str, int] = graph.facts.get("divisors", {}) if graph else {}
        self.quick = AxisFacts(self.divisors)
        self._thorough: AxisFacts | None = None
        self._trusted: AxisFacts | None = None

    def _all(self) -> AxisFacts:
        """With what loops carry, which takes an analysis of the whole kernel."""
        if self._thorough is None:
            assert self.graph is not None
            self._thorough = axis_facts(self.graph.body, self.divisors)
        return self._thorough

    def _trusting(self) -> AxisFacts:
        """As `_all`; tiles of a group do not start before the group."""
        if self._trusted is None:
            assert self.graph is not None
            self._trusted = AxisFacts(self.divisors, self.graph.body, trusting=True)
        return self._trusted

    def every(self, value: Value, enough: int) -> int:
        """A number that divides a scalar: a multiple of `enough` where that can be told."""
        found = self.quick.of(value).every
        return found if found % enough == 0 or self.graph is None else self._all().of(value).every

    def positive(self, value: Value) -> bool:
        """Whether a scalar is never below 0, as a signed coordinate either."""
        if isinstance(value.type, ScalarType) and value.type.dtype.kind == "uint":
            return False
        if self.quick.of(value).positive:
            return True
        return self.graph is not None and self._trusting().of(value).positive


def map_fault(op: Load | Store) -> str:
    """Why no tensor map describes the tensor of an access; empty when one does."""
    t = tensor_type(op.tensor, "access")
    if t.tma and t.inner_dim is not None:
        return ""
    graph = graph_of(op)
    faults: dict[str, str] = graph.facts.get("map_faults", {}) if graph is not None else {}
    for tensor in tensors_of(op.tensor):
        if faults.get(tensor.name):
            return f"{tensor.name} has no legal tensor map: {faults[tensor.name]}"
    why = "base or stride alignment, or no dimension of stride 1"
    return f"the tensor has no legal tensor map ({why})"


def start_fault(op: Load | Store) -> str:
    """Why the blocks of an access may start where no bulk copy does; empty when none does."""
    t = tensor_type(op.tensor, "access")
    if t.inner_dim is None:
        return "no dimension has stride 1"
    starts, size = Starts(graph_of(op)), t.dtype.bytes
    every = starts.every(op.offsets[t.inner_dim], max(1, BULK_BYTES // size)) * size
    if every % BULK_BYTES:
        row = op.block_shape[t.inner_dim]
        if row * size % BULK_BYTES:
            return (
                f"a block takes {row} elements of a row ({row * size} bytes), and bulk copies "
                f"start at multiples of {BULK_BYTES} bytes; take a multiple of "
                f"{BULK_BYTES // size} elements"
            )
        return (
            f"a block may start at any multiple of {every} bytes of a row, and bulk copies start "
            f"at multiples of {BULK_BYTES} (tl.multiple_of states one)"
        )
    if isinstance(op, Store):
        before = [d for d in range(t.rank) if not starts.positive(op.offsets[d])]
        if any(d != _lines(op) for d in before):
            return "a block may start before the tensor does, and bulk stores must not"
    return ""


def _lines(op: Store) -> int | None:
    """The dimension in which a bulk store can leave lines out: the one after the contiguous one."""
    t = tensor_type(op.tensor, "store")
    dim = max((d for d in range(t.rank) if d != t.inner_dim), default=None)
    return None if dim in op.squeeze or (op.end is not None and op.end_dim != dim) else dim


def cut_stores(graph: TileGraph) -> None:
    """Stores that may start before the tensor get an end, which has them stored line by line."""
    starts = Starts(graph)
    for op in graph.find(Store):
        dim = _lines(op)
        if op.end is not None or dim is None or starts.positive(op.offsets[dim]):
            continue
        assert op.parent is not None
        b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
        end = b.value(Shape(op.tensor, dim))
        places = list(op.offsets)
        wanted = places[dim].type
        assert isinstance(wanted, ScalarType)
        if wanted.dtype.bits < int32.bits:  # which cannot hold the end
            places[dim] = b.value(Cast(places[dim], int32))
        elif end.type != wanted:
            end = b.value(Cast(end, wanted.dtype))
        block, squeeze = op.block_shape, op.squeeze
        new = Store(op.tensor, tuple(places), op.value, block, squeeze, end, dim, loc=op.loc)
        graph.replace_op(op, new)
