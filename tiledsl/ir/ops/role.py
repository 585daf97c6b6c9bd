"""Roles: which warpgroups run what, and where a thread stands in its role."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.machine import Machine
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import region
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type
from tiledsl.target import Target

LOWER = Level.WARP_SPECIALIZED | Level.MACHINE


class Role(Op, opcode="role.role", levels=LOWER, effect=Effect.CONTROL):
    """Warpgroups [first_warpgroup, first_warpgroup + num_warpgroups) run the body.

    Roles of a kernel stand next to each other at the top and become one if / else chain.
    registers: setmaxnreg value, 0 for none.  grow: whether it raises the launch value.
    instances: 1 when the warpgroups run the body together on one tile (cooperative), else one
    instance a warpgroup (ping-pong); a tile's layout counts the warps of one instance.
    single_thread: one elected lane of the first warp runs the body, the other threads skip it.
    num_ctas: CTAs of a cluster that run the body together; layouts count the warps of all of them.
    dealt: a layout's warps are dealt out over these CTAs in turns, from the last warp of each down;
    else each CTA has a run of them.
    copies: its threads copy operands for other roles, and exchange nothing with each other.
    warp: of a single thread, the warp of its warpgroup; a role of another warp than the first
    shares the warpgroup of the role before it, and its registers.
    Ref: PTX ISA, setmaxnreg.
    """

    name: str = attribute()
    first_warpgroup: int = attribute()
    num_warpgroups: int = attribute()
    registers: int = attribute(default=0)
    grow: bool = attribute(default=False)
    instances: int = attribute(default=1)
    single_thread: bool = attribute(default=False)
    num_ctas: int = attribute(default=1)
    dealt: bool = attribute(default=False)
    warp: int = attribute(default=0)
    copies: bool = attribute(default=False)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        return ()

    def verify(self, target: Target) -> None:
        if self.num_warpgroups % self.instances:
            raise VerifyError(
                f"role {self.name}: {self.num_warpgroups} warpgroups, {self.instances} instances"
            )
        if self.registers and (self.registers % 8 or not 24 <= self.registers <= 256):
            raise VerifyError(
                f"role {self.name}: registers are multiples of 8 in 24..256, got {self.registers}"
            )

    @property
    def num_warps(self) -> int:
        """Warps of one instance, those of all its CTAs."""
        return 4 * self.num_warpgroups * self.num_ctas // self.instances


class Setup(Op, opcode="role.setup", levels=Level.MACHINE, effect=Effect.CONTROL):
    """One thread of the CTA runs the body before the roles start.

    It initialises barriers and prefetches tensor maps.
    """

    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class WarpgroupIndex(Op, opcode="role.index", levels=LOWER):
    """Index of this warpgroup inside its role, the same in all lanes of a warp. Result: i32."""

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class ClusterRank(Op, opcode="role.cluster_rank", levels=LOWER):
    """Rank of this CTA in its cluster. Result: i32. Ref: PTX ISA, %cluster_ctarank."""

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class Always(Op, opcode="role.always", levels=LOWER):
    """True, which ptxas does not know: it keeps a branch on it.

    It mixes no instructions of the branch with those in front and behind. Result: i1.
    Ref: PTX ISA, %smid.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int1),)

    def evaluate(self) -> Any:
        """True."""
        return np.bool_(True)


class FirstTile(Op, opcode="role.first_tile", levels=LOWER):
    """Index of this CTA's (cluster's) first tile in a persistent grid. Result: i32."""

    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class TileStep(Op, opcode="role.tile_step", levels=LOWER):
    """Clusters in the launched grid: the distance between two tiles of one CTA. Result: i32."""

    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class NumTiles(Op, opcode="role.num_tiles", levels=LOWER):
    """Cluster tiles of the user's grid. Result: i32.

    That is its size with axis `cluster_axis` divided by `cluster_size`.
    """

    cluster_axis: int = attribute(default=-1)
    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class Pause(Op, opcode="role.pause", levels=LOWER, effect=Effect.SYNC):
    """The thread of a role does nothing for so many clocks of its SM, and then goes on.

    It orders nothing. clocks: i32. Ref: PTX ISA, nanosleep, %clock.
    """

    clocks: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        if self.clocks.type != ScalarType(int32):
            raise TypeMismatch(f"role.pause: clocks is {self.clocks.type}, expected i32")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        """Nothing changes."""
        return ()


class DrawTile(Op, opcode="role.draw_tile", levels=LOWER, effect=Effect.SYNC):
    """Draws a number from the launch's tile counter (one thread): 0, 1, 2, ... over all CTAs.

    Nothing waits for it until the number is used. Result: i32.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)


class NextTile(Op, opcode="role.next_tile", levels=LOWER, effect=Effect.SYNC):
    """The tile that a drawn number stands for; tiles below the number of CTAs went to them unasked.

    Every CTA draws once for each tile that it starts, `count` times in all, so that the last number
    is count - 1: whoever draws it sets the counter back for the next launch. Result: i32.
    """

    drawn: Value = operand()
    count: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)
