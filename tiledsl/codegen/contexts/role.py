"""Roles as visible blocks, and where a thread or CTA stands."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.cpp import indent
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.emission import Place
from tiledsl.codegen.places import place_declarations
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.watch import role_registers
from tiledsl.ir.op import Op
from tiledsl.ir.ops import role as ops
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class RoleContext:
    """One branch of the chain of roles. head: `if (...)`, `else if (...)` or `else`; registers.

    A statement or "".
    """

    head: str
    name: str
    registers: str
    body: str
    variant: str = ""


@dataclass(frozen=True)
class SetupContext:
    """What one thread does first."""

    body: str


@enters("role.role")
def enter_role(op: ops.Role, e: Emission) -> None:
    """The body runs on the role's warpgroups."""
    if not _fills_block(op, e):
        e.use("warpgroup")
    place = Place(op.first_warpgroup, op.num_warpgroups, op.num_warps, op.num_ctas, dealt=op.dealt)
    place.name, place.is_single, place.copies = op.name, op.single_thread, op.copies
    place.is_plain = (
        _fills_block(op, e)
        and op.num_ctas == 1
        and not op.dealt
        and not any(o.opcode.startswith("mma.") for o in op.body.walk())
        and not any(_fetches_for_sums(o) for o in op.body.walk())
    )
    e.places.append(place)


@emits("role.role")
def role(op: ops.Role, e: Emission, body: str) -> RoleContext:
    """`if (warpgroup == 0) {`, the register budget, the names of the place, the body."""
    place = e.places.pop()
    if op.single_thread:
        warp = 4 * op.first_warpgroup + op.warp
        body = f"  if (warp_id() == {warp} && elect_one()) {{\n{indent(body)}\n  }}"
    declared = "".join(f"  {line}\n" for line in place_declarations(place, is_role=True))
    call = "reg_inc" if op.grow else "reg_dec"
    count = role_registers(op, e)
    registers = f"{call}<{count}>();" if count else ""
    if _fills_block(op, e):
        return RoleContext("", op.name, registers, declared + body, "whole")
    if op.warp:
        chain = _chain(op)
        after = chain[chain.index(op) + 1 :]
        variant = "between" if after and after[0].warp else "more"
        return RoleContext("", op.name, "", declared + body, variant)
    if any(r.warp and r.first_warpgroup == op.first_warpgroup for r in _chain(op)):
        return RoleContext(_head(op, e), op.name, registers, declared + body, "open")
    return RoleContext(_head(op, e), op.name, registers, declared + body)


def _fetches_for_sums(op: Op) -> bool:
    """Whether a loop fetches tiles through cp.async and carries tiles of registers.

    These stay in registers all along, and what ptxas makes of loads and copies between them hangs
    on little: gradients of norms keep the addresses with which they were measured.
    """
    if not isinstance(op, For):
        return False
    carried = [v for v in op.carried if isinstance(v.type, TileType) and v.type.num_elements > 1]
    return bool(carried) and any(o.opcode == "pointer.fetch_lanes" for o in op.body.walk())


def _fills_block(op: ops.Role, e: Emission) -> bool:
    """Whether every thread of the CTA runs the role."""
    return _chain(op) == [op] and op.num_warpgroups == e.places[0].num_warpgroups


def _head(op: ops.Role, e: Emission) -> str:
    """The condition; the last role of a chain that covers the CTA is the plain `else`."""
    chain = _chain(op)
    is_first = chain[0] is op
    first, count = op.first_warpgroup, op.num_warpgroups
    total = e.places[0].num_warpgroups
    covered = sum(r.num_warpgroups for r in chain if not r.warp)
    if not is_first and chain[-1] is op and covered == total:
        return "else"
    if count == 1:
        condition = f"warpgroup == {first}"
    elif first == 0:
        condition = f"warpgroup < {count}"
    elif first + count >= total:
        condition = f"warpgroup >= {first}"
    else:
        condition = f"warpgroup >= {first} && warpgroup < {first + count}"
    return f"if ({condition})" if is_first else f"else if ({condition})"


def _chain(op: ops.Role) -> list[ops.Role]:
    """The roles that stand next to `op`, itself included."""
    assert op.parent is not None
    chain: list[ops.Role] = []
    for other in op.parent.ops:
        if isinstance(other, ops.Role):
            chain.append(other)
        elif op in chain:
            break
        else:
            chain = []
    return chain


@emits("role.setup")
def setup(op: ops.Setup, e: Emission, body: str) -> SetupContext:
    """`if (threadIdx.x == 0) {`."""
    del op, e
    return SetupContext(body)


@dataclass(frozen=True)
class PlaceContext(Expression):
    """Where a thread stands. value: an expression, or the size of a cluster."""

    value: str


@emits("role.index")
def index(op: ops.WarpgroupIndex, e: Emission) -> PlaceContext:
    """`(int)(warpgroup - 1)`."""
    del op
    return PlaceContext("", True, e.group_index, cheap=True)


@emits("role.cluster_rank")
def cluster_rank(op: ops.ClusterRank, e: Emission) -> PlaceContext:
    """`(int)cluster_rank()`."""
    del op, e
    return PlaceContext("", True, "", cheap=True)


@dataclass(frozen=True)
class AlwaysContext:
    """The whole statement, in front of the loops that ask for it."""

    target: str


@emits("role.always")
def always(op: ops.Always, e: Emission) -> AlwaysContext:
    """`const bool always_1`, which stands in front of loops."""
    return AlwaysContext(e.assignment(op.result, "always"))


@emits("role.first_tile", "role.tile_step")
def tiles(op: ops.FirstTile | ops.TileStep, e: Emission) -> PlaceContext:
    """`first_tile<2>()`."""
    del e
    return PlaceContext("", True, str(op.cluster_size), cheap=True)


@dataclass(frozen=True)
class NumTilesContext:
    """The whole statement: its name is worth a variable."""

    target: str
    cluster_axis: int
    cluster_size: int
    grid: str


@emits("role.num_tiles")
def num_tiles(op: ops.NumTiles, e: Emission) -> NumTilesContext:
    """`const int tiles_1 = num_tiles<0, 2>(grid_0, grid_1, grid_2);`."""
    return NumTilesContext(
        e.assignment(op.result, "num_tiles"), op.cluster_axis, op.cluster_size, grid_arguments(e, 3)
    )


def grid_arguments(e: Emission, count: int) -> str:
    """`grid_0, grid_1, grid_2`."""
    return ", ".join(e.params.grid(axis) for axis in range(count))


def is_positive(op: Op | None) -> bool:
    """Whether an op's result is known to be positive."""
    return isinstance(op, ops.TileStep)


@dataclass(frozen=True)
class PauseContext:
    """How long a thread waits."""

    clocks: str


@emits("role.pause")
def pause(op: ops.Pause, e: Emission) -> PauseContext:
    """`pause_thread(trips_1 * 154);`."""
    return PauseContext(e.text(op.clocks))


@dataclass(frozen=True)
class TileContext:
    """A tile drawn from the counter of the launch. slot: its index."""

    target: str
    slot: str
    drawn: str = ""
    count: str = ""


@emits("role.draw_tile")
def draw_tile(op: ops.DrawTile, e: Emission) -> TileContext:
    """`const int drawn_1 = atomicAdd(&tile_counters[launch_slot], 1);`."""
    return TileContext(e.assignment(op.result, "drawn"), e.params.launch_slot())


@emits("role.next_tile")
def next_tile(op: ops.NextTile, e: Emission) -> TileContext:
    """The tile behind a number: `next_tile(&tile_counters[launch_slot], drawn_1, num_tiles_1)`."""
    return TileContext(
        e.assignment(op.result, "next_tile"),
        e.params.launch_slot(),
        e.text(op.drawn),
        e.text(op.count),
    )
