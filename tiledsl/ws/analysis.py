"""What warp specialisation has to know about a tile graph.

Its dots, the loads that feed them, what depends on what. Analysis only: nothing here changes the
graph. What cannot be specialised is reported with a reason and a place.
"""

from __future__ import annotations

from collections.abc import Iterable
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
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.copied import BESIDE
from tiledsl.ws.copied import HAZARD as COPY_HAZARD
from tiledsl.ws.copied import address_loads
from tiledsl.ws.copied import copied_operand
from tiledsl.ws.copied import loads_beside
from tiledsl.ws.copied import stored_source
from tiledsl.ws.copied import uncopied_parts
from tiledsl.ws.made import Made
from tiledsl.ws.made import chain_of
from tiledsl.ws.made import chained
from tiledsl.ws.made import made_operands
from tiledsl.ws.operands import Copies
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.operands import major_problem
from tiledsl.ws.operands import operand_source
from tiledsl.ws.operands import place_of
from tiledsl.ws.operands import smem_of_load
from tiledsl.ws.pointer_hazards import depends
from tiledsl.ws.pointer_hazards import pointer_hazard
from tiledsl.ws.row_sums import row_sums


@dataclass(frozen=True)
class Declined:
    """Why something was left as it is."""

    what: str
    reason: str
    loc: SourceLoc | None = None

    def __str__(self) -> str:
        at = f" ({self.loc.short})" if self.loc else ""
        return f"{self.what}: {self.reason}{at}"


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

    def head_of(self, dot: Dot) -> Dot:
        """The first of the dots that add to one accumulator."""
        return chain_of(self.loop, list(self.dots), dot)[0]

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


def program_axes(value: Value, cache: dict[Value, frozenset[int]] | None = None) -> frozenset[int]:
    """Grid axes that a value depends on, through operands, loop-carried values and control flow."""
    cache = {} if cache is None else cache
    if value in cache:
        return cache[value]
    cache[value] = frozenset()
    owner = value.owner
    if isinstance(owner, Region):
        parent = owner.parent
        sources: list[Value] = []
        if isinstance(parent, For):
            sources = [parent.lower, parent.step]
            if value.index > 0:
                sources += [parent.init[value.index - 1], _yielded(parent.body)[value.index - 1]]
        elif parent is not None:
            sources = list(parent.operands)
        found = _union(program_axes(v, cache) for v in sources)
    elif isinstance(owner, ProgramId):
        found = frozenset({owner.axis})
    else:
        found = _union(program_axes(v, cache) for v in owner.operands)
        for r in owner.regions:
            found |= _union(program_axes(v, cache) for v in _yielded(r))
    cache[value] = found
    return found


def plain_axes(values: Iterable[Value]) -> frozenset[int]:
    """Grid axes that values depend on with neither a loop's result nor a read in between."""
    work, seen = list(values), set[Value]()
    found: set[int] = set()
    while work:
        v = work.pop()
        op = v.defining_op
        if v in seen:
            continue
        seen.add(v)
        if op is None:
            loop = v.owner.parent if isinstance(v.owner, Region) else None
            if isinstance(loop, For) and v.index:
                work += [loop.init[v.index - 1], _yielded(loop.body)[v.index - 1]]
            continue
        if isinstance(op, For | While) or op.effect is Effect.READ:
            continue
        if isinstance(op, ProgramId):
            found.add(op.axis)
        work += op.operands
        work += [y for r in op.regions for y in _yielded(r)]
    return frozenset(found)


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    out: frozenset[int] = frozenset()
    for s in sets:
        out |= s
    return out


def _yielded(region: Region) -> tuple[Value, ...]:
    end = region.terminator
    return end.values if isinstance(end, Yield) else ()


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
    for reason, op in order_problems(graph, loads):
        out.decline("warp_specialize", reason, op.loc)
        return out
    copies = [op for op in loads if isinstance(op, pointer.Load)]
    if copies and (op := stored_source(graph, copies)) is not None:
        out.decline("warp_specialize", COPY_HAZARD, op.loc)
        return out
    fed = {o.op.id for f in out.loops for o in f.loads} | address_loads(graph, copies)
    out.epilogue_loads = tuple(o.block_shape for o in graph.find(Load) if o.id not in fed)
    return out


def order_problems(
    graph: TileGraph, operands: Iterable[Load | pointer.Load]
) -> Iterator[tuple[str, Op]]:
    """Accesses to memory whose order roles would not keep: why, and the op."""
    found = {
        HAZARD: memory_hazard(graph),
        LANES: pointer_hazard(graph),
        OVERWRITTEN: overwritten_store(graph),
        DRAWN: drawn_operand(graph, operands),
    }
    for reason, op in found.items():
        if op is not None:
            yield reason, op


NO_DOT = "the kernel has no dot"
NO_LOOP = "a dot stands outside of a for loop; roles take loops over blocks of K"
WHILE = "the kernel has a while loop; a for loop, whose bounds may be loaded, can be specialised"
STEP = "the loop's step is not a positive constant; make it a tl.constexpr"
DRAWN = (
    "what is loaded depends on an atomic operation, which happens in one role only; draw it in a "
    "kernel before this one"
)
OVERWRITTEN = (
    "the kernel may store to the same elements twice, and bulk copies keep no order between "
    "stores; store each element once, with offsets that depend on the loop around the store"
)
HAZARD = (
    "the kernel loads from a tensor that it stores to, and roles keep no order between them; store "
    "to another tensor"
)

LANES = (
    "the kernel loads and stores through one pointer, and roles keep no order between threads; "
    "store through another pointer"
)


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
    arg, end = loop.carried[index], _yielded(loop.body)[index]
    op = end.defining_op
    uses = [o for o in loop.body.walk() if arg in o.operands]
    if not isinstance(arg.type, TileType) or uses != [op]:
        return False
    if isinstance(op, Dot):
        return op in dots and op.acc is arg
    return isinstance(op, Add) and (op.a is arg) != (op.b is arg)


def drawn_operand(graph: TileGraph, loads: Iterable[Load | pointer.Load]) -> Op | None:
    """A load, or the control flow around one, that depends on the result of a side effect.

    The load role cannot know it: the effect happens in the consumers.
    """
    effects = [r for op in graph.walk() if op.effect is Effect.WRITE for r in op.results]
    if not effects:
        return None
    known = tainted_values(graph, effects)
    for load in loads:
        around = [o for o in graph.enclosing(load) if isinstance(o, For | If)]
        for op in (load, *around):
            reads = (op.lower, op.upper, op.step) if isinstance(op, For) else op.operands
            if any(v in known for v in reads):
                return op
    return None


def memory_hazard(graph: TileGraph) -> Load | None:
    """A load that is not simply followed by a store of what it became, to the same block."""
    stores: dict[Value, list[Store]] = {}
    position = {op.id: i for i, op in enumerate(graph.walk())}
    for store in graph.find(Store):
        for tensor in tensors_of(store.tensor):
            stores.setdefault(tensor, []).append(store)
    for load in graph.find(Load):
        for store in [s for t in tensors_of(load.tensor) for s in stores.get(t, [])]:
            same = (
                load.tensor is store.tensor
                and load.offsets == store.offsets
                and load.block_shape == store.block_shape
            )
            follows = load.parent is store.parent and position[load.id] < position[store.id]
            if not same or not follows or not depends(store.value, load.results):
                return load
    return None


def overwritten_store(graph: TileGraph) -> Store | None:
    """A store that may follow another one to the same elements of its tensor.

    Two stores in different branches of an if exclude each other. A store in a loop is taken to walk
    along where its place depends on what the loop changes.
    """
    before: dict[Value, list[Store]] = {}
    for store in graph.find(Store):
        tensors = tensors_of(store.tensor)
        if any(not _exclude(store, other) for t in tensors for other in before.get(t, [])):
            return store
        for tensor in tensors:
            before.setdefault(tensor, []).append(store)
        loops = [o for o in graph.enclosing(store) if isinstance(o, For | While)]
        if not all(_walks(graph, store, loop) for loop in loops):
            return store
    return None


def _exclude(a: Store, b: Store) -> bool:
    """Whether two stores stand in different branches of an if."""
    branches: list[dict[int, Region]] = []
    for store in (a, b):
        found: dict[int, Region] = {}
        region = store.parent
        while region is not None and region.parent is not None:
            if isinstance(region.parent, If):
                found[region.parent.id] = region
            region = region.parent.parent
        branches.append(found)
    both = branches[0].keys() & branches[1].keys()
    return any(branches[0][i] is not branches[1][i] for i in both)


def _walks(graph: TileGraph, store: Store, loop: For | While) -> bool:
    """Whether the place of a store is made from what a loop around it changes."""
    known = tainted_values(graph, [a for region in loop.regions for a in region.args])
    return any(v in known for v in (store.tensor, *store.offsets))


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
        axes = _union(program_axes(v, self.axes) for v in place_of(load))
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
    for use in graph.users(load.result):
        if not isinstance(use.op, Dot | Transpose) and use.op.id not in beside:
            return f"the loaded tile is also used by {use.op.opcode}"
    return ""


def tainted_values(  # noqa: C901 - a case per kind of region
    graph: TileGraph, sources: Iterable[Value]
) -> set[Value]:
    """Values that depend on any of `sources`, through loops and branches too.

    The load role cannot know them.
    """
    bad: set[Value] = set(sources)
    changed = True
    while changed:
        changed = False
        for op in graph.walk():
            before = len(bad)
            if isinstance(op, For):
                for arg, init, nxt, res in zip(
                    op.carried, op.init, _yielded(op.body), op.results, strict=True
                ):
                    if init in bad or nxt in bad:
                        bad.update((arg, res))
                if any(v in bad for v in (op.lower, op.upper, op.step)):
                    bad.update(op.results)
                    bad.update(op.body.args)
            elif isinstance(op, If):
                for i, res in enumerate(op.results):
                    if (
                        op.condition in bad
                        or _yielded(op.then)[i] in bad
                        or _yielded(op.orelse)[i] in bad
                    ):
                        bad.add(res)
            elif any(v in bad for v in op.operands):
                bad.update(op.results)
            changed |= len(bad) != before
    return bad


def has_side_effect(op: Op) -> bool:
    """True when the op or anything inside it writes or synchronises."""
    if op.effect in (Effect.WRITE, Effect.SYNC):
        return True
    return any(has_side_effect(o) for r in op.regions for o in r.ops)


def tile_operands(op: Op) -> list[Value]:
    """Operands that are register tiles."""
    return [v for v in op.operands if isinstance(v.type, TileType)]
