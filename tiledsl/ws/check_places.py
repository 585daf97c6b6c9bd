"""What a thread of the checker's run knows of its place in the launch: scalars by op."""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.ir.op import Op
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Thread


class PlaceRules:
    """Methods `calc_<op>`: what computes the scalars that an op gives.

    code, point: what runs, and at which launch. drawn: tiles drawn from the launch's counter.
    """

    code: Program
    point: LaunchPoint
    drawn: int

    def calc_warpgroup_index(self, t: Thread, op: Op) -> Does:
        return gives(t, op, lambda: t.place[1])

    def calc_cluster_rank(self, t: Thread, op: Op) -> Does:
        return gives(t, op, lambda: t.place[0])

    def calc_first_tile(self, t: Thread, op: Op) -> Does:
        return gives(t, op, lambda: self.point.first)

    def calc_tile_step(self, t: Thread, op: Op) -> Does:
        return gives(t, op, lambda: self.point.clusters)

    def calc_num_tiles(self, t: Thread, op: role.NumTiles) -> Does:
        def count() -> int:
            total = 1
            for axis, extent in enumerate(self.point.grid):
                total *= -(-extent // op.cluster_size) if axis == op.cluster_axis else extent
            return total

        return gives(t, op, count)

    def calc_draw_tile(self, t: Thread, op: role.DrawTile) -> Does:
        def draw() -> int:
            self.drawn += 1
            return self.drawn - 1

        return gives(t, op, draw)

    def calc_next_tile(self, t: Thread, op: role.NextTile) -> Does:
        return gives(t, op, lambda: t.env[op.drawn] + self.point.clusters)

    def calc_program_id(self, t: Thread, op: program.ProgramId) -> Does:
        return gives(t, op, lambda: self.point.program[op.axis])

    def calc_num_programs(self, t: Thread, op: program.NumPrograms) -> Does:
        return gives(t, op, lambda: self.point.grid[op.axis])

    def calc_own_row(self, t: Thread, op: program.OwnRow) -> Does:
        return gives(t, op, lambda: op.rows - 1 if op.last else 0)

    def calc_tile_to_program(self, t: Thread, op: program.TileToProgram) -> Does:
        env, size = t.env, op.cluster_size

        def place() -> None:
            left = t.tile = env[op.tile]
            for axis, (extent, r) in enumerate(zip(self.point.grid, op.results, strict=True)):
                here = -(-extent // size) if axis == op.cluster_axis else extent
                at, left = (left % here, left // here) if here else (0, 0)
                env[r] = at * size + t.place[0] if axis == op.cluster_axis else at

        return place

    def calc_shape(self, t: Thread, op: memory.Shape) -> Does:
        symbol = self.code.symbols.get((memory.tensors_of(op.tensor)[0], op.dim), -1)
        differs = isinstance(op.tensor.defining_op, memory.Pick)  # from tile to tile

        def extent() -> int:
            found = self.point.extent_of(symbol)
            return found * (1 + t.tile % 3 * self.point.wobble) if differs else found

        return gives(t, op, extent)

    def calc_pick(self, t: Thread, op: memory.Pick) -> Does:
        return gives(t, op, lambda: 0)

    def calc_stride(self, t: Thread, op: memory.Stride) -> Does:
        return gives(t, op, lambda: self.point.extent)

    def calc_cluster_reduce(self, t: Thread, op: mma.ClusterReduce) -> Does:
        """Whether this CTA is the one that goes on with the sum."""
        env = t.env

        def owns() -> None:
            env[op.results[1]] = env[op.rank] == env[op.index] % op.cluster_size

        return owns


def gives(t: Thread, op: Op, function: Callable[[], int]) -> Does:
    """The op whose one result is what a function returns."""
    env, result = t.env, op.results[0]

    def give() -> None:
        env[result] = function()

    return give
