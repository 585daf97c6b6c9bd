"""Programs that a CTA runs one after the other, so that the next one's loads come meanwhile.

Where few programs fit on an SM, all of them wait at the same time: for memory, then for each other.
A CTA (or cluster) that stays takes one program of the grid after the other; what a program loads is
fetched while the one before computes (ws/fetch_ahead.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dtypes import uint8
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import program
from tiledsl.ir.ops.barrier import CursorCreate
from tiledsl.ir.ops.barrier import InitFence
from tiledsl.ir.ops.barrier import MbarrierArray
from tiledsl.ir.ops.barrier import MbarrierInit
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import FirstTile
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.ir.ops.role import TileStep
from tiledsl.ir.ops.role_programs import DrawProgram
from tiledsl.ir.ops.role_programs import ReceiveProgram
from tiledsl.ir.ops.role_programs import SendProgram
from tiledsl.ir.ops.smem import Buffer
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.budget import SmemPlan

_NAMES = ("program", "following")


def obstacle_to_staying(graph: TileGraph) -> str:
    """Why a CTA cannot run program after program; empty where it can.

    Programs have no order, so that one may load before the one before has stored; they may not
    count on each other.
    """
    loads = False
    for op in graph.walk():
        match op:
            case mma.Dot():
                return "it has a dot"
            case For() | While():
                return "it has a loop"
            case program.ProgramId(axis=axis) | program.NumPrograms(axis=axis) if axis:
                return "its grid has more than one axis"
            case pointer.Load(volatile=True) | pointer.Barrier():
                return "it waits for other programs"
            case pointer.Store() | pointer.Load() | Yield():
                loads |= isinstance(op, pointer.Load) and isinstance(op.pointer.type, TileType)
            case memory.Load() | memory.Store():
                return "it loads or stores blocks of tensors; through pointers CTAs may stay"
            case _ if op.effect not in (Effect.PURE, Effect.CONTROL):
                return f"it has {op.opcode}"
            case _:
                pass
    if not loads or not graph.find(Reduce):
        return "it waits for nothing but memory" if loads else "it loads no tile"
    return ""


def bytes_of_elements(graph: TileGraph) -> tuple[int, int]:
    """Bytes of an element of a row: of the program's own, and of one place for all programs."""
    loads: list[pointer.Load] = graph.find(pointer.Load)
    rows = [(op, op.pointer.type) for op in loads if isinstance(op.pointer.type, TileType)]
    longest = max((t.shape[-1] for _, t in rows), default=0)
    own = shared = 0
    for op, type_ in rows:
        if 2 * type_.shape[-1] > longest and type_.dtype.element is not None:
            if depends_on_program(op.pointer):
                own += type_.dtype.element.bytes
            else:
                shared += type_.dtype.element.bytes
    return own, shared


def depends_on_program(value: Value) -> bool:
    """Whether a value is made from the program's number, or from what is not known."""
    seen: set[Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        op = v.defining_op
        if op is None or v in seen:
            continue
        seen.add(v)
        if isinstance(op, program.ProgramId) or op.effect is not Effect.PURE:
            return True
        todo += op.operands
    return False


def add_programs(
    graph: TileGraph, region: Region, ops: list[Op], mapping: dict[Value, Value], num_ctas: int
) -> While:
    """Puts copies of a program's ops into a loop over the programs of the grid.

    The loop carries the program and the one after it. Programs are drawn, since SMs are not equally
    fast, but for the first two of each cluster, or the first one of large ones (draw_following).
    """
    b = Builder(graph, region)
    first, step = b.value(FirstTile(num_ctas)), b.value(TileStep(num_ctas))
    count = b.value(program.NumPrograms(0))
    init = (first, b.value(Add(first, step)))
    loop = While(init, before=Region(), body=Region())
    asked = [loop.before.add_arg(v.type, n) for v, n in zip(init, _NAMES, strict=True)]
    now, following = (loop.body.add_arg(v.type, n) for v, n in zip(init, _NAMES, strict=True))
    b.add(loop)
    with b.at(loop.before):
        b.add(Yield((b.value(Compare("lt", asked[0], count)), *asked)))
    with b.at(loop.body):
        b.value(DrawProgram(count, cluster_size=num_ctas), "drawn")
        for op in ops:
            if isinstance(op, program.ProgramId):
                mapping[op.result] = now
            elif not isinstance(op, Yield):
                b.add(clone_op(op, mapping))
        b.add(Yield((following, b.value(ReceiveProgram(cluster_size=num_ctas), "later"))))
    return loop


def send_after(graph: TileGraph, loop: While, op: Op, num_ctas: int) -> None:
    """Sends the drawn program after an op by which all threads have heard of each other."""
    drawn = loop.body.ops[0]
    assert isinstance(drawn, DrawProgram)
    b = Builder(graph, loop.body, loop.body.ops.index(op) + 1, op.loc)
    b.add(SendProgram(drawn.result, cluster_size=num_ctas))


def draw_following(graph: TileGraph, loop: While, num_ctas: int) -> None:
    """Draws the second program of each cluster, too, in front of the loop.

    A large one may find no place before others end, though as many as there should be are launched.
    Programs that are dealt out to it beforehand would end last, a round after all others.
    """
    assert loop.parent is not None
    count = programs_of(loop)
    early = Builder(graph, loop.parent, loop.parent.ops.index(_made_by(count)) + 1, loop.loc)
    drawn = early.value(DrawProgram(count, cluster_size=num_ctas), "drawn")
    b = Builder(graph, loop.parent, loop.parent.ops.index(loop), loop.loc)
    b.add(SendProgram(drawn, cluster_size=num_ctas))
    graph.set_operand(loop, 1, b.value(ReceiveProgram(cluster_size=num_ctas), "following"))


def _made_by(value: Value) -> Op:
    assert value.defining_op is not None
    return value.defining_op


def programs_of(loop: While) -> Value:
    """The number of programs that a loop walks over."""
    end = loop.before.terminator
    assert isinstance(end, Yield)
    compare = end.values[0].defining_op
    assert isinstance(compare, Compare)
    return compare.b


def staying_loop(region: Region) -> While | None:
    """The loop over programs under a region, if any."""
    for op in region.ops:
        if isinstance(op, While) and op.body.ops and isinstance(op.body.ops[0], DrawProgram):
            return op
    return None


def message_on_mbarrier(graph: TileGraph, role: Role, plan: SmemPlan, top: Builder) -> None:
    """Gives the programs that a role sends their place in shared memory, and an mbarrier.

    top: where these are made.
    """
    kinds = SendProgram | ReceiveProgram
    inside = [op for op in role.body.walk() if isinstance(op, kinds) and op.parent is not role.body]
    _place_message(graph, role, plan, top, inside, "next")
    before = [op for op in role.body.ops if isinstance(op, kinds)]
    # A cursor of its own: that of the loop then goes with those of its exchanges, in one register.
    _place_message(graph, role, plan, top, before, "second")


def _place_message(
    graph: TileGraph, role: Role, plan: SmemPlan, top: Builder, found: Sequence[Op], which: str
) -> None:
    """Memory and an mbarrier for messages of which each is received before the next one is sent."""
    if not found:
        return
    at = plan.take(f"message with the {which} program", 16, align=16)
    box = top.value(Buffer(SmemType((4,), uint8, 0, 0), 1, at + 8), "box")
    sent = top.value(MbarrierArray(1, 1, at), "sent")
    cursor = Builder(graph, role.body, 0).value(CursorCreate(1), "turn")
    for op in found:
        new = op.rebuild({}, (), box=box, barriers=sent, cursor=cursor)
        graph.replace_op(op, new)
    setup = top.add(Setup())
    with top.at(setup.body):
        top.add(MbarrierInit(sent, 1))
        top.add(InitFence())
