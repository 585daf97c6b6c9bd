"""What warp specialisation has to know about a tile graph.

Its dots, the loads that feed them, what depends on what. Analysis only: nothing here changes the
graph. What cannot be specialised is reported with a reason and a place.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property

from tiledsl.errors import SourceLoc
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import SmemType
from tiledsl.ws.copied import BESIDE
from tiledsl.ws.copied import HAZARD as COPY_HAZARD
from tiledsl.ws.copied import address_loads
from tiledsl.ws.copied import copied_operand
from tiledsl.ws.copied import loads_beside
from tiledsl.ws.copied import stored_source
from tiledsl.ws.copied import uncopied_parts
from tiledsl.ws.dependence import plain_axes
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.dependence import tainted_values
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.dot_loop import Made
from tiledsl.ws.dot_loop import is_zero_tile
from tiledsl.ws.dot_loop import needs_promotion
from tiledsl.ws.made import chained
from tiledsl.ws.made import made_operands
from tiledsl.ws.operands import Copies
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.operands import major_problem
from tiledsl.ws.operands import operand_source
from tiledsl.ws.operands import place_of
from tiledsl.ws.operands import smem_of_load
from tiledsl.ws.order_problems import order_problems
from tiledsl.ws.row_sums import row_sums
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import slot_vectors

NO_DOT = "the kernel has no dot"
NO_LOOP = "a dot stands outside of a for loop; roles take loops over blocks of K"
WHILE = "the kernel has a while loop; a for loop, whose bounds may be loaded, can be specialised"
STEP = "the loop's step is not a positive constant; make it a tl.constexpr"


@dataclass(frozen=True)
class Declined:
    """Why something was left as it is."""

    what: str
    reason: str
    loc: SourceLoc | None = None

    def __str__(self) -> str:
        at = f" ({self.loc.short})" if self.loc else ""
        return f"{self.what}: {self.reason}{at}"


@dataclass
class Analysis:
    """Facts about one tile graph. epilogue_loads: block shapes of loads that feed no dot."""

    loops: list[DotLoop] = field(default_factory=list[DotLoop])
    stores: list[Store] = field(default_factory=list[Store])
    declined: list[Declined] = field(default_factory=list[Declined])
    epilogue_loads: tuple[tuple[int, ...], ...] = ()

    @property
    def copies(self) -> bool:
        """Whether threads copy operands."""
        return any(o.is_copied for f in self.loops for o in f.loads)

    def decline(self, what: str, reason: str, loc: SourceLoc | None = None) -> None:
        self.declined.append(Declined(what, reason, loc))


def analyze(graph: TileGraph) -> Analysis:
    """Finds the loops that can be specialised, and says why others cannot."""
    out = Analysis()
    out.stores = graph.find(Store)
    dots: list[Dot] = graph.find(Dot)
    written = {t for s in out.stores for t in tensors_of(s.tensor)}
    if not dots:
        out.decline("warp_specialize", NO_DOT)
        return out
    loops: dict[int, list[Dot]] = {}
    order: dict[int, For] = {}
    for dot in dots:
        around = graph.enclosing(dot)
        if not around or not isinstance(around[0], For):
            out.decline("warp_specialize", NO_LOOP, dot.loc)
            return out
        loops.setdefault(around[0].id, []).append(dot)
        order[around[0].id] = around[0]
    for op in graph.walk():
        if isinstance(op, While):
            out.decline("warp_specialize", WHILE, op.loc)
            return out
    for key, members in loops.items():
        found = _dot_loop(graph, order[key], members, written, out)
        if found is None:
            return out
        out.loops.append(found)
    loads = [o.op for f in out.loops for o in f.loads]
    vectors = [op for f in out.loops for op in loads_of(slot_vectors(f))]
    for reason, op in order_problems(graph, [*loads, *vectors]):
        out.decline("warp_specialize", reason, op.loc)
        return out
    copies = [op for op in loads if isinstance(op, pointer.Load)]
    if copies and (op := stored_source(graph, copies)) is not None:
        out.decline("warp_specialize", COPY_HAZARD, op.loc)
        return out
    fed = {o.op.id for f in out.loops for o in f.loads} | address_loads(graph, copies)
    out.epilogue_loads = tuple(o.block_shape for o in graph.find(Load) if o.id not in fed)
    return out


def _dot_loop(
    graph: TileGraph, loop: For, dots: list[Dot], written: set[Value], out: Analysis
) -> DotLoop | None:
    step = constant_value(loop.step)
    if not isinstance(step, int) or step <= 0:
        out.decline("warp_specialize", STEP, loop.loc)
        return None
    loads: dict[int, OperandLoad] = {}
    zero: list[bool] = []
    partial = any(needs_promotion(d) or is_zero_tile(d.acc) for d in dots)
    beside: frozenset[int] = frozenset() if partial else row_sums(graph, loop)
    made = {} if partial or beside else made_operands(graph, loop, dots)
    math = {op.id for m in made.values() for op in m.ops}
    sides = _Sides(graph, loop, written, beside | math, made)
    for dot in dots:
        for side in ("a", "b"):
            found = sides.load(dot, side)
            if isinstance(found, Declined):
                out.declined.append(found)
                return None
            loads.setdefault(found.op.id, found)
        starts = is_zero_tile(dot.acc)
        problem = "" if starts else chained(graph, loop, dots, dot, several=bool(made))
        if problem:
            out.decline("warp_specialize", problem, dot.loc)
            return None
        if starts or dot.acc in loop.carried:
            zero.append(starts or is_zero_tile(loop.init[loop.carried.index(dot.acc)]))
    ordered = [loads[op.id] for op in loop.body.ops if op.id in loads]
    if len(ordered) != len(loads):
        out.decline("warp_specialize", "a load stands outside of the loop of its dot", loop.loc)
        return None
    if any(item.is_copied for item in ordered) and (op := loads_beside(loop, set(loads))):
        out.decline("warp_specialize", BESIDE, op.loc)
        return None
    found = DotLoop(loop, tuple(dots), tuple(ordered), tuple(zero), partial, beside, made)
    problem = _partial_problem(graph, found) if partial else ""
    if problem:
        out.decline("warp_specialize", problem, loop.loc)
        return None
    return found


class _Sides:
    """What the dots of a loop load."""

    def __init__(
        self,
        graph: TileGraph,
        loop: For,
        written: set[Value],
        beside: frozenset[int],
        made: Mapping[int, Made],
    ) -> None:
        self.graph = graph
        self.loop = loop
        self.written = written
        self.beside = beside
        self.made = made
        self.axes: dict[Value, frozenset[int]] = {}

    @cached_property
    def facts(self) -> AxisFacts:
        """Of the addresses in the graph."""
        return axis_facts(self.graph.body, self.graph.facts.get("divisors", {}))

    def load(self, dot: Dot, side: str) -> OperandLoad | Declined:
        """The load behind an operand, or why no load role can make it."""
        found = operand_source(dot.a if side == "a" else dot.b)
        if side == "a" and dot.id in self.made:
            found = self.made[dot.id].load, False
        if found is None or not (isinstance(found[0], Load) or self.graph.facts.get("copies")):
            reason = f"operand {side} of the dot is not a block load"
            return Declined("warp_specialize", reason, dot.loc)
        load, transposed = found
        smem, copies = self.smem(load), None
        if isinstance(smem, tuple):
            smem, copies = smem
        reason = _load_problem(self.graph, self.loop, load, self.written, self.beside)
        if reason or isinstance(smem, str):
            return Declined("warp_specialize", f"operand {side}: {reason or smem}", load.loc)
        reason = major_problem(side, smem, transposed=transposed)
        if isinstance(load, pointer.Load):
            reason = reason or uncopied_parts(side, smem, transposed=transposed)
        if reason:
            return Declined("warp_specialize", reason, load.loc)
        axes = frozenset[int]().union(*(program_axes(v, self.axes) for v in place_of(load)))
        name = load.result.name or side
        return OperandLoad(load, smem, axes, name, copies, plain_axes(place_of(load)))

    def smem(self, load: Load | pointer.Load) -> SmemType | tuple[SmemType, Copies] | str:
        """How an operand lies in its slot, and how threads copy it; or why it cannot."""
        if isinstance(load, Load):
            return smem_of_load(load)
        return copied_operand(self.loop, load, self.facts)


def _partial_problem(graph: TileGraph, found: DotLoop) -> str:
    """Why CUDA cores cannot go on with the products of a loop as they come, or ""."""
    made = tainted_values(graph, [d.result for d in found.dots])
    if any(o in made for item in found.loads for o in item.place):
        return "the place of a load depends on the product of a dot"
    inner = [o for o in found.loop.body.walk() if not isinstance(o, Yield)]
    if any(o.effect in (Effect.WRITE, Effect.SYNC) for o in inner):
        return "the dot loop writes to memory"
    return ""


def _load_problem(
    graph: TileGraph,
    loop: For,
    load: Load | pointer.Load,
    written: set[Value],
    beside: frozenset[int],
) -> str:
    if load.parent is not loop.body:
        return "the load is not directly in the loop of the dot"
    if isinstance(load, Load) and not written.isdisjoint(tensors_of(load.tensor)):
        return "the kernel also stores to the tensor it loads"
    for op in _readers(graph, load.result, beside):
        if not isinstance(op, Dot):
            return f"the loaded tile is also used by {op.opcode}"
    return ""


def _readers(graph: TileGraph, tile: Value, beside: frozenset[int]) -> Iterator[Op]:
    """What reads a tile, or its transposes; without the ops beside the products."""
    for use in graph.users(tile):
        if use.op.id in beside:
            continue
        if isinstance(use.op, Transpose):
            yield from _readers(graph, use.op.result, beside)
        else:
            yield use.op
