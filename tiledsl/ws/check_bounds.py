"""Trips of loops as functions of the launch, without a run: for the choice of launches only."""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.ops.smem import Slot
from tiledsl.ir.ops.smem import WriteScalars
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import drawn_axis
from tiledsl.ws.check_program import drawn_sources
from tiledsl.ws.check_program import loaded_factors
from tiledsl.ws.check_scalars import Compute
from tiledsl.ws.check_scalars import Formulas

Program3 = tuple[int, int, int]
Leaf = tuple[str, int]
LEAVES: dict[str, Callable[[LaunchPoint, Program3, int], int]] = {
    "tile": lambda point, program, axis: program[axis],
    "program": lambda point, program, axis: program[axis],
    "programs": lambda point, program, axis: point.grid[axis],
    "symbol": lambda point, program, symbol: point.extent_of(symbol),
    "loaded": lambda point, program, factor: point.loaded_of(factor),
    "place": lambda point, program, _: 0,
    "unknown": lambda point, program, _: 0,
}
"""What scalars depend on, with a number: where a tile that is walked to, or the program lies along
an axis; the programs along one; an extent or argument; what is loaded; where a thread is."""


OF_TILES = ("tile", "program")


class AllBounds:
    """Bounds of all loops of a program, for what they have in common."""

    def __init__(self, code: Program) -> None:
        self.code = code
        self.words = written_once(code)
        self.formulas = Formulas(self._leaf, self._told)
        self._leaves: list[Leaf] = []
        self._found: dict[tuple[int, Program3], tuple[LaunchPoint, list[int]]] = {}
        self._first: dict[int, list[int]] = {}
        self._of_tiles: tuple[int, list[int], list[Compute]] | None = None

    def leaves(self) -> list[Leaf]:
        """What the scalars so far depend on."""
        known = self._leaves
        known += [self._leaf(v) for v in self.formulas.leaves[len(known) :]]
        return known

    def at(self, point: LaunchPoint, program: Program3) -> list[int]:
        """All scalars in a launch, in the tile of a program."""
        key = id(point), program  # the point is kept, so that no other one is given its id
        if key not in self._found:
            first = self._first.get(key[0])
            if first is not None and len(first) == len(self.formulas.uses):
                values = self._in_tile(first, program)
            else:
                leaves = [LEAVES[kind](point, program, number) for kind, number in self.leaves()]
                values = self._first[key[0]] = self.formulas.values(leaves)
            self._found[key] = point, values
        return self._found[key][1]

    def _in_tile(self, values: list[int], program: Program3) -> list[int]:
        """Scalars in another tile of a launch."""
        if self._of_tiles is None or self._of_tiles[0] != len(values):
            numbers = [i for i, (kind, _) in enumerate(self._leaves) if kind in OF_TILES]
            self._of_tiles = len(values), numbers, self.formulas.steps_with({*numbers})
        _, numbers, steps = self._of_tiles
        leaves = {i: program[self._leaves[i][1]] for i in numbers}
        return self.formulas.changed(values, leaves, steps)

    def _told(self, v: Value) -> Value | None:
        """What another role wrote where a word is read."""
        op = v.defining_op
        if op is None and len(sources := drawn_sources(v)) == 1:
            op, v = sources[0].defining_op, sources[0]
        slot = op.smem.defining_op if isinstance(op, ReadScalars) else None
        write = self.words.get(slot.buffer) if isinstance(slot, Slot) else None
        return None if write is None else write.values[v.index]

    def _leaf(self, v: Value) -> Leaf:
        code = self.code
        match v.defining_op:
            case None if (axis := drawn_axis(v)) >= 0:
                return "tile", axis
            case None:
                outside = isinstance(v.owner, Region) and v.owner.parent is None
                return ("symbol", code.symbols.get((v, -1), -1)) if outside else ("unknown", v.id)
            case Shape() as op:
                return "symbol", code.symbols.get((tensors_of(op.tensor)[0], op.dim), -1)
            case NumPrograms() as op:
                return "programs", op.axis
            case TileToProgram():
                return "tile", v.index
            case ProgramId() as op:
                return "program", op.axis
            case WarpgroupIndex() | ClusterRank():
                return "place", v.id
            case op if op in loaded_factors(code):
                return "loaded", loaded_factors(code)[op]
            case _:
                return "unknown", v.id


def written_once(code: Program) -> dict[Value, WriteScalars]:
    """By ring of words, the one op that writes them in a loop."""
    found: dict[Value, list[WriteScalars]] = {}
    for region, steps in code.code.items():
        for op in [s.op for s in steps if isinstance(s.op, WriteScalars)]:
            inside = not isinstance(region.parent, Role)
            if inside and isinstance(slot := op.smem.defining_op, Slot):
                found.setdefault(slot.buffer, []).append(op)
    return {buffer: ops[0] for buffer, ops in found.items() if len(ops) == 1}


class Bounds:
    """Bounds of a loop in the first iteration of the loops around it.

    symbols: extents and arguments that they depend on. axes: of the grid, on whose ids they do.
    is_of_program: on those of the program itself. is_loaded: on loaded scalars. is_of_launch: on
    nothing else. key: the same for loops with the same bounds.
    """

    def __init__(self, among: AllBounds, loop: For) -> None:
        self._among = among
        self.loop = loop
        formulas = among.formulas
        self.key = tuple([formulas.number(v) for v in (loop.lower, loop.upper, loop.step)])
        leaves = among.leaves()
        found = {leaves[i] for n in self.key for i in formulas.uses[n]}
        self.symbols = sorted(n for kind, n in found if kind == "symbol" and n >= 0)
        self.axes = {axis for kind, axis in found if kind in ("tile", "program")}
        kinds = {kind for kind, _ in found}
        self.is_of_program = "program" in kinds
        self.is_loaded = "loaded" in kinds
        self.is_of_launch = kinds.isdisjoint(("loaded", "unknown"))

    def at(self, point: LaunchPoint, program: Program3 = (0, 0, 0)) -> tuple[int, int, int]:
        """Lower, upper, step in a launch, in the tile of a program."""
        values = self._among.at(point, program)
        low, high, by = self.key
        return values[low], values[high], values[by]

    def trips(self, point: LaunchPoint, program: Program3 = (0, 0, 0)) -> int:
        """Trips in a launch; loops that count down count as none."""
        low, high, by = self.at(point, program)
        return max(0, -(-(high - low) // by)) if by > 0 else 0


def bounds_of(code: Program) -> list[Bounds]:
    """Of all loops, made once."""
    if "bounds" not in code.tables:
        among = among_all(code)
        loops = [s.op for steps in code.code.values() for s in steps if isinstance(s.op, For)]
        code.tables["bounds"] = [Bounds(among, loop) for loop in loops]
    return code.tables["bounds"]


def among_all(code: Program) -> AllBounds:
    """The scalars of a program, made once."""
    if "scalars" not in code.tables:
        code.tables["scalars"] = AllBounds(code)
    return code.tables["scalars"]
