"""Programs that clusters draw."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.errors import CodegenError
from tiledsl.ir.op import Value
from tiledsl.ir.ops import role_programs as ops


@dataclass(frozen=True)
class ProgramContext:
    """One of the three steps. slot: of the launch's counters.

    box, barrier, cursor: of the message.
    """

    target: str = ""
    cluster_size: int = 1
    slot: str = ""
    drawn: str = ""
    count: str = ""
    box: str = ""
    barrier: str = ""
    cursor: str = ""


@emits("role.draw_program")
def draw(op: ops.DrawProgram, e: Emission) -> ProgramContext:
    """`const int drawn_1 = draw_program<8>(&tile_counters[launch_slot], grid_0);`."""
    return ProgramContext(
        e.assignment(op.result, "drawn"),
        op.cluster_size,
        e.params.launch_slot(),
        count=e.text(op.count),
    )


@emits("role.send_program")
def send(op: ops.SendProgram, e: Emission) -> ProgramContext:
    """`send_program<8>(drawn_1, box_1, sent_1);`."""
    return ProgramContext(
        cluster_size=op.cluster_size,
        drawn=e.text(op.drawn),
        box=_given(op.box, e),
        barrier=_given(op.barriers, e),
    )


@emits("role.receive_program")
def receive(op: ops.ReceiveProgram, e: Emission) -> ProgramContext:
    """`const int later_1 = receive_program<8>(box_1, sent_1, turn_1);`."""
    return ProgramContext(
        e.assignment(op.result, "later"),
        op.cluster_size,
        box=_given(op.box, e),
        barrier=_given(op.barriers, e),
        cursor=_given(op.cursor, e),
    )


def _given(value: Value | None, e: Emission) -> str:
    if value is None:
        raise CodegenError("a program is sent without shared memory for it")
    return e.text(value)
