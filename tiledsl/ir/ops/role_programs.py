"""How a cluster that stays learns which program of the grid comes next: it draws a number.

The first thread of the cluster draws, and sends the program to all CTAs; nothing waits for it until
the program is needed.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type

SURE_CTAS = 4
"""CTAs of clusters that find places at once: they share SMs (runtime/launcher.py)."""

LOWER = Level.WARP_SPECIALIZED | Level.MACHINE


class DrawProgram(Op, opcode="role.draw_program", levels=LOWER, effect=Effect.SYNC):
    """Draws a number from the launch's counter, once for each program that a cluster starts.

    Clusters of more than SURE_CTAS also draw once before that. count: of all programs; after all
    draws of a launch the counter is 0 again. cluster_size: CTAs that run a program together; their
    first thread has the result (i32).
    """

    count: Value = operand()
    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class SendProgram(Op, opcode="role.send_program", levels=LOWER, effect=Effect.SYNC):
    """Tells all threads of the cluster the program that a drawn number stands for.

    A cluster runs the program of its index first, then the one a round later, unless it draws that
    too, then drawn ones. Between two of these ops all threads exchange something, so that everyone
    has received what was sent before. box, barriers, cursor: where it is sent.
    Ref: PTX ISA, st.async.
    """

    drawn: Value = operand()
    box: Value | None = operand(default=None)
    barriers: Value | None = operand(default=None)
    cursor: Value | None = operand(default=None)
    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ReceiveProgram(Op, opcode="role.receive_program", levels=LOWER, effect=Effect.SYNC):
    """The program that was sent; all threads wait for it. Result: i32."""

    box: Value | None = operand(default=None)
    barriers: Value | None = operand(default=None)
    cursor: Value | None = operand(default=None)
    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)
