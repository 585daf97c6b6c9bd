"""The program's place in the grid."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.contexts.role import grid_arguments
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.registry import emits
from tiledsl.ir.ops import program as ops

_AXES = ("x", "y", "z")


@dataclass(frozen=True)
class OfTileContext:
    """The struct that holds the three indices."""

    name: str
    tile: str
    group: int
    group_axis: int
    cluster_axis: int
    cluster_size: int
    grid: str
    rank: str
    variant: str = ""


@dataclass(frozen=True)
class GridContext(Expression):
    """An index or an extent of the grid."""

    value: str


@dataclass(frozen=True)
class RegisterContext:
    """A variable and the register that it takes."""

    variable: str
    value: str


@emits("program.id")
def program_id(op: ops.ProgramId, e: Emission) -> GridContext:
    """blockIdx; CTAs that share a program by split-K sit on axis 0."""
    block = f"blockIdx.{_AXES[op.axis]}"
    split = getattr(e.graph.facts.get("grid"), "split_k", 1)
    return GridContext(
        "", True, f"({block} / {split})" if op.axis == 0 and split > 1 else block, cheap=True
    )


@emits("program.count")
def count(op: ops.NumPrograms, e: Emission) -> None:
    """A parameter."""
    e.bind(op.result, e.params.grid(op.axis))


@emits("program.own_row")
def own_row(op: ops.OwnRow, e: Emission) -> None:
    """A constant: who shares rows out has put the part of each warpgroup in its place."""
    e.bind(op.result, str(op.rows - 1 if op.last else 0))


@emits("program.register")
def register(op: ops.Register, e: Emission) -> RegisterContext:
    """`const i64 now_1 = clock_ns();`."""
    text = {"globaltimer": "clock_ns()", "smid": "smid()", "num_threads": "(int)blockDim.x"}
    return RegisterContext(e.assignment(op.result), text[op.name])


@emits("program.of_tile")
def of_tile(op: ops.TileToProgram, e: Emission) -> OfTileContext:
    """The programs of a tile: `const Program program_1 = program_of_tile<8, 0>(tile_1, ...);`."""
    name = e.names.fresh("program")
    for axis, result in enumerate(op.results):
        e.bind(result, f"{name}.axis_{axis}")
    rank = "cluster_rank()" if op.cluster_size > 1 else "0"
    return OfTileContext(
        name,
        e.text(op.tile),
        op.group,
        op.group_axis,
        op.cluster_axis,
        op.cluster_size,
        grid_arguments(e, 3 if op.group_axis == 2 else 2),
        rank,
        "merged" if op.group_axis == 2 else "",
    )
