"""Loops with several dots and tile math between them: what they are made of.

A flow loop is a `for` whose body holds dots. Each operand of a dot is a block load of the loop (its
own channel), a block load made before the loop (a channel of one slot that lives through the loop),
a right operand that is one number (written once), or a tile that is computed: a left operand
stays in registers where the dot reads it as it is, what is left is staged in shared memory. A
loaded tile may feed tile math as well, which then reads its slot. Nothing else is assumed: any
number of dots, accumulators that the loop carries, scales or reads in between, sibling loops that
continue the same channels.
"""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import NO_LOOP
from tiledsl.ws.analysis import STEP
from tiledsl.ws.analysis import WHILE
from tiledsl.ws.analysis import Declined
from tiledsl.ws.bounded import Bound
from tiledsl.ws.bounded import bound_of
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.dot_loop import PROMOTION
from tiledsl.ws.dot_loop import is_zero_tile
from tiledsl.ws.dot_loop import needs_promotion
from tiledsl.ws.flow_parts import FixedOperand
from tiledsl.ws.flow_parts import FlowDot
from tiledsl.ws.flow_parts import StagedOperand
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.operands import major_problem
from tiledsl.ws.operands import operand_load
from tiledsl.ws.operands import smem_of_load
from tiledsl.ws.order_problems import order_problems
from tiledsl.ws.order_problems import unknown_place
from tiledsl.ws.paired import pair_rows

NESTED = (
    "a dot stands inside of a branch or loop of the dot loop; let the loop itself compute it, and "
    "choose with tl.where"
)
STREAMED_ELEMENTS = 2048
"""A block that only tile math reads comes through a channel from so many elements on."""


@dataclass(frozen=True)
class FlowLoop:
    """One loop: its dots in program order and its groups of loads, one channel each.

    math: loads, and transposes of loads, that tile math reads as well, by op id.
    """

    loop: For
    dots: tuple[FlowDot, ...]
    groups: tuple[tuple[OperandLoad, ...], ...]
    math: frozenset[int] = frozenset()

    @property
    def yields(self) -> tuple[Value, ...]:
        """What the body hands to the next iteration."""
        end = self.loop.body.terminator
        assert isinstance(end, Yield)
        return end.values


@dataclass
class Flow:
    """The flow loops of a kernel and the operand loads that live outside of them."""

    loops: list[FlowLoop] = field(default_factory=list[FlowLoop])
    outer: list[OperandLoad] = field(default_factory=list[OperandLoad])
    stores: list[Store] = field(default_factory=list[Store])
    declined: list[Declined] = field(default_factory=list[Declined])
    notes: list[str] = field(default_factory=list[str])

    def decline(self, reason: str, op: object) -> None:
        """Notes why the kernel is not specialised."""
        self.declined.append(Declined("warp_specialize", reason, getattr(op, "loc", None)))

    def channel_key(self, group: tuple[OperandLoad, ...]) -> tuple[object, ...]:
        """Equal for groups of sibling loops that can share one aref."""
        blocks = [(o.block, o.smem.paired) for o in group]
        return tuple((op.tensor.id, op.block_shape, op.squeeze, p) for op, p in blocks)


def analyze_flow(graph: TileGraph) -> Flow:
    """Finds the flow loops, or says why there are none."""
    out = Flow(stores=graph.find(Store))
    for op in graph.walk():
        if isinstance(op, While):
            out.decline(WHILE, op)
            return out
    loops: dict[int, For] = {}
    for dot in graph.find(Dot):
        around = graph.enclosing(dot)
        if not around or not isinstance(around[0], For):
            out.decline(NO_LOOP, dot)
            return out
        loops[around[0].id] = around[0]
    outer: dict[int, OperandLoad] = {}
    written = {t for s in out.stores for t in tensors_of(s.tensor)}
    for loop in loops.values():
        found = _flow_loop(graph, loop, written, outer, out)
        if found is None:
            return out
        out.loops.append(found)
    out.outer = list(outer.values())
    brought = [o.op for f in out.loops for group in f.groups for o in group]
    for reason, op in order_problems(graph, [*brought, *(o.op for o in out.outer)]):
        out.decline(reason, op)
    for dot in graph.find(Dot):
        if needs_promotion(dot):
            out.decline(PROMOTION, dot)
    return out


def _flow_loop(
    graph: TileGraph, loop: For, written: set[Value], outer: dict[int, OperandLoad], out: Flow
) -> FlowLoop | None:
    step = constant_value(loop.step)
    if not isinstance(step, int) or step <= 0:
        out.decline(STEP, loop)
        return None
    dots: list[FlowDot] = []
    inner: dict[int, OperandLoad] = {}
    for op in loop.body.ops:
        if not isinstance(op, Dot):
            if any(isinstance(o, Dot) for r in op.regions for o in r.walk()):
                out.decline(NESTED, op)
                return None
            continue
        made = _flow_dot(graph, loop, op, written, inner, outer, out)
        if made is None:
            return None
        dots.append(made)
    brought = [o.block for f in out.loops for group in f.groups for o in group]
    brought += [o.block for o in (*outer.values(), *inner.values())]
    for item in list(_streamed(graph, loop, written, inner, brought)):
        inner.setdefault(item.op.id, item)
    covered = {b.select.id for d in dots for b in d.bounds}
    dots = pair_rows(graph, loop, dots, inner, out.notes)
    blocks = [load.block for load in inner.values()]
    math = frozenset(i for op in blocks for i in _math_readers(graph, op, covered))
    return FlowLoop(loop, tuple(dots), _groups(loop.body, dots, inner), math)


def _streamed(
    graph: TileGraph, loop: For, written: set[Value], inner: Container[int], loads: list[Load]
) -> Iterator[OperandLoad]:
    """Blocks that only tile math reads and that are as large as operands: quantised weights.

    They come through channels too; where TMA cannot read one, or what the kernel computes says
    where it lies, the consumers load it themselves. loads: what comes through channels already,
    `inner` of this loop.
    """
    for op in loop.body.ops:
        if not isinstance(op, Load) or op.id in inner:
            continue
        if not written.isdisjoint(tensors_of(op.tensor)):
            continue
        type_, smem = op.result.type, smem_of_load(op)
        assert isinstance(type_, TileType)
        if isinstance(smem, str) or type_.num_elements < STREAMED_ELEMENTS:
            continue
        brought = [*loads, op]
        if unknown_place(graph, brought, unknown_to_loads(graph, brought)) is not None:
            continue
        loads = brought
        axes: frozenset[int] = program_axes(op.tensor)
        for offset in op.offsets:
            axes |= program_axes(offset)
        yield OperandLoad(op, smem, axes, op.result.name or op.tensor.name or "x")


def _math_readers(graph: TileGraph, op: Op, covered: set[int] | None = None) -> set[int]:
    """The op and transposes of it, those of them that something else than dots reads.

    covered: selects that a bound stands for.
    """
    found: set[int] = set()
    for use in graph.users(op.results[0]):
        if isinstance(use.op, Transpose) or (covered and use.op.id in covered):
            below = _math_readers(graph, use.op, covered)
            found |= below | ({op.id} if below else set())
        elif not isinstance(use.op, Dot):
            found.add(op.id)
    return found


def _flow_dot(
    graph: TileGraph,
    loop: For,
    dot: Dot,
    written: set[Value],
    inner: dict[int, OperandLoad],
    outer: dict[int, OperandLoad],
    out: Flow,
) -> FlowDot | None:
    loads: list[OperandLoad] = []
    staged: list[StagedOperand] = []
    bounds: list[Bound] = []
    register_a = False
    fixed = _fixed(dot)
    for side, value in enumerate((dot.a, dot.b)):
        if side == 1 and fixed is not None:
            continue
        found = operand_load(value)
        bound = bound_of(value, loop) if found is None else None
        if bound is not None and can_clear(graph, bound):
            bounds.append(bound)
            found = (bound.load, False)
        if found is None:
            type_ = value.type
            assert isinstance(type_, TileType)
            left = side == 0 and not isinstance(value.defining_op, Transpose)
            spreads = left and type_.dtype.is_fp8 and type_.shape[1] % 32 == 0
            if not type_.dtype.is_16bit_float and not spreads:
                reason = f"operand {'ab'[side]} of the dot is computed, and is {type_.dtype!r}"
                out.decline(f"{reason}; roles stage 16-bit floats only, cast or load it", dot)
                return None
            if left:
                register_a = True
            else:
                staged.append(_staged(dot, side, value))
            continue
        made = _operand(graph, loop, found[0], written, out)
        if made is None:
            return None
        problem = major_problem("ab"[side], made.smem, transposed=found[1])
        if problem:
            out.decline(problem, found[0])
            return None
        (inner if made.op.parent is loop.body else outer).setdefault(made.op.id, made)
        loads.append((inner if made.op.parent is loop.body else outer)[made.op.id])
    return FlowDot(
        dot, is_zero_tile(dot.acc), tuple(loads), register_a, tuple(staged), tuple(bounds),
        fixed=fixed,
    )  # fmt: skip


def _fixed(dot: Dot) -> FixedOperand | None:
    """The right operand of a dot where it is one number throughout."""
    splat = dot.b.defining_op
    number = constant_value(splat.a) if isinstance(splat, Splat) else None
    type_ = dot.b.type
    assert isinstance(type_, TileType)
    if number is None or type_.dtype.bits not in (8, 16) or not type_.dtype.is_float:
        return None
    K, N = type_.shape
    smem = SmemType((N, K), type_.dtype, 1)
    return FixedOperand(float(number), smem, 2 * dot.id + 1, dot.b.name or "constant")


def can_clear(graph: TileGraph, bound: Bound) -> bool:
    """Whether only dots read the tile, all of them cleared, and its rows are rows of memory."""
    smem = smem_of_load(bound.load)
    if isinstance(smem, str) or smem.major == bound.dim:
        return False
    users = [u.op for u in graph.users(bound.load.result)]
    while any(isinstance(u, Transpose) for u in users):
        users = [
            v
            for u in users
            for v in (
                [w.op for w in graph.users(u.results[0])] if isinstance(u, Transpose) else [u]
            )
        ]
    return users == [bound.select] and not _math_readers(graph, bound.select)


def _staged(dot: Dot, side: int, value: Value) -> StagedOperand:
    """How a computed operand is written: untransposed, rows along memory."""
    is_transposed = False
    while isinstance(value.defining_op, Transpose):
        is_transposed = not is_transposed
        value = value.defining_op.a
    type_ = value.type
    assert isinstance(type_, TileType)
    smem = SmemType(type_.shape, type_.dtype, 1)
    return StagedOperand(side, value, is_transposed, smem, 2 * dot.id + side)


def _operand(
    graph: TileGraph, loop: For, load: Load, written: set[Value], out: Flow
) -> OperandLoad | None:
    smem = smem_of_load(load)
    reason = "" if not isinstance(smem, str) else smem
    if not written.isdisjoint(tensors_of(load.tensor)):
        reason = "the kernel also stores to the tensor it loads; store to another one"
    elif load.parent is not loop.body and load.parent is not loop.parent:
        reason = "the load stands neither in the loop nor right around it; move it there"
    elif load.parent is not loop.body and _math_readers(graph, load):
        reason = (
            "a tile that is loaded before the loop feeds dots and other operations; load it in the "
            "loop"
        )
    if reason or isinstance(smem, str):
        out.decline(reason, load)
        return None
    axes: frozenset[int] = program_axes(load.tensor)
    for offset in load.offsets:
        axes |= program_axes(offset)
    return OperandLoad(load, smem, axes, load.result.name or load.tensor.name or "x")


def _groups(
    body: Region, dots: list[FlowDot], inner: dict[int, OperandLoad]
) -> tuple[tuple[OperandLoad, ...], ...]:
    """Loads of the loop that feed the same dot share a channel; groups in program order."""
    parent = {i: i for i in inner}

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for dot in dots:
        ids = [o.op.id for o in dot.loads if o.op.id in inner]
        for other in ids[1:]:
            parent[root(other)] = root(ids[0])
    groups: dict[int, list[OperandLoad]] = {}
    for op in body.ops:
        if op.id in inner:
            groups.setdefault(root(op.id), []).append(inner[op.id])
    return tuple(tuple(g) for g in groups.values())
