"""Trips of loops as functions of the launch, without a run: for the choice of launches only."""

from __future__ import annotations

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import drawn_axis
from tiledsl.ws.check_scalars import Formula

Program3 = tuple[int, int, int]


class Bounds:
    """Bounds of a loop in the first iteration of the loops around it.

    symbols: extents and arguments that they depend on. axes: of the grid, on whose ids they do.
    """

    def __init__(self, code: Program, loop: For) -> None:
        self.code = code
        self.loop = loop
        self.formula = Formula((loop.lower, loop.upper, loop.step))
        found = {self._symbol(v) for v in self.formula.leaves}
        self.symbols = sorted(n for n in found if n >= 0)
        self.owners = [v.defining_op for v in self.formula.leaves]
        found = ((v, o) for v, o in zip(self.formula.leaves, self.owners, strict=True))
        self.axes = {
            o.axis if isinstance(o, ProgramId) else v.index
            for v, o in found
            if isinstance(o, TileToProgram | ProgramId)
        }
        self.axes |= {axis for v in self.formula.leaves if (axis := drawn_axis(v)) >= 0}

    def at(self, point: LaunchPoint, program: Program3 = (0, 0, 0)) -> tuple[int, int, int]:
        """Lower, upper, step in a launch, in the tile of a program."""
        leaves = {v: self._leaf(v, point, program) for v in self.formula.leaves}
        low, high, by = self.formula.values(leaves)
        return low, high, by

    def trips(self, point: LaunchPoint, program: Program3 = (0, 0, 0)) -> int:
        """Trips in a launch; loops that count down count as none."""
        low, high, by = self.at(point, program)
        return max(0, -(-(high - low) // by)) if by > 0 else 0

    def _symbol(self, v: Value) -> int:
        """The number of the extent or argument that a leaf is, or -1."""
        op = v.defining_op
        key = (tensors_of(op.tensor)[0], op.dim) if isinstance(op, Shape) else (v, -1)
        return self.code.symbols.get(key, -1)

    def _leaf(self, v: Value, point: LaunchPoint, program: Program3) -> int:
        match v.defining_op:
            case None if (axis := drawn_axis(v)) >= 0:
                return program[axis]
            case None:
                outside = isinstance(v.owner, Region) and v.owner.parent is None
                return point.extent_of(self._symbol(v)) if outside else 0
            case Shape():
                return point.extent_of(self._symbol(v))
            case NumPrograms() as op:
                return point.grid[op.axis]
            case TileToProgram():
                return program[v.index]
            case ProgramId() as op:
                return program[op.axis]
            case op:
                return point.extent if op.effect is Effect.READ else 0


def bounds_of(code: Program) -> list[Bounds]:
    """Of all loops, made once."""
    if "bounds" not in code.tables:
        loops = [s.op for steps in code.code.values() for s in steps if isinstance(s.op, For)]
        code.tables["bounds"] = [Bounds(code, loop) for loop in loops]
    return code.tables["bounds"]
