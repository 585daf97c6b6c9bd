"""What a launch asks for of a tile, in the terms of the cost model.

Bounds, offsets and extents are computed as the host sees them; what does not depend on the tile is
found once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import analyze
from tiledsl.ws.copy_rings import read_argument
from tiledsl.ws.cost import COPY_CLOCKS
from tiledsl.ws.cost import ROW_COPY_CLOCKS
from tiledsl.ws.cost import Problem
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.launch import Extents
from tiledsl.ws.launch import Grid
from tiledsl.ws.launch import RequestLike
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.outer_loops import OuterLoops
from tiledsl.ws.outer_loops import loops_around
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import stored_geometry
from tiledsl.ws.view_extents import elements_of

FEW_ROWS = 64
"""Of an operand, beside which the other one is streamed."""


def names_of(tensor: Value) -> set[str]:
    """Names of the arguments that a tensor may be."""
    return {t.name for t in tensors_of(tensor)}


def is_placed(item: OperandLoad, values: HostValues) -> bool:
    """Whether the host can tell where a program's block lies."""
    if item.is_copied:
        return False
    try:
        for offset in item.block.offsets:
            values.get(offset)
    except (Unknown, KeyError):
        return False
    return len(tensors_of(item.block.tensor)) == 1


def loaded_names(item: OperandLoad) -> set[str]:
    """Names of the tensor arguments that an operand is loaded from; none where threads copy it."""
    return set() if item.is_copied else names_of(item.block.tensor)


class TileProblems:
    """What one launch asks for of any tile of a kernel.

    probe_tile: (M, N, K) of the dot that the kernel was looked at with, with `fixed` constexprs.
    """

    def __init__(
        self,
        request: RequestLike,
        graph: TileGraph,
        analysis: Analysis,
        shape: KernelShape,
        probe_tile: tuple[int, int, int],
        fixed: Mapping[str, object],
    ) -> None:
        self.request = request
        self.graph = graph
        self.analysis = analysis
        self.shape = shape
        self.probe_tile = probe_tile
        self.fixed = fixed
        probe = Plan(num_consumers=1, mma_depth=1)
        self.staged = bool(stored_geometry(analysis.stores, probe)[0])
        self.span = self.loop_span()
        self.outer = self.outer_trips()
        self.loops = OuterLoops(loops_around(analysis.loops[0].loop), self.host_args(graph))

    def loop_span(self) -> int:
        """upper - lower of the first dot loop for a program in the middle of the grid."""
        launch = self.request.launch
        loop = self.analysis.loops[0].loop
        try:
            grid = launch.grid(self.fixed)
            middle = (grid[0] // 2, grid[1] // 2, grid[2] // 2)
            values = HostValues(self.host_args(self.graph), grid, middle)
            return max(0, int(values.get(loop.upper)) - int(values.get(loop.lower)))
        except (Unknown, KeyError):
            return self.longest_span(loop)

    def outer_trips(self) -> int:
        """How often a program in the middle of the grid runs the first dot loop."""
        launch = self.request.launch
        grid = launch.grid(self.fixed)
        args = self.host_args(self.graph)
        values = HostValues(args, grid, (grid[0] // 2, grid[1] // 2, grid[2] // 2))
        count = 1
        for loop in loops_around(self.analysis.loops[0].loop):
            try:
                low, high, step = (int(values.get(v)) for v in (loop.lower, loop.upper, loop.step))
                count *= max(1, -(-(high - low) // step)) if step > 0 else 1
            except (Unknown, KeyError):
                pass
        return count

    def outer_of(self, tile: tuple[int, int, int], grid: Grid) -> int:
        """How often a program runs the first dot loop with a tile."""
        return self.loops.trips(tile, grid) if self.loops.extents else self.outer

    def look_at_tile(self, dim: int, extent: int, graph: TileGraph) -> None:
        """What loops around the dot loop have to do with M or N (0, 1).

        graph: the kernel with another extent of that dimension.
        """
        found = analyze(graph)
        if not found.loops:
            return
        other = OuterLoops(loops_around(found.loops[0].loop), self.host_args(graph))
        if len(other.around) == len(self.loops.around):
            grid = self.request.launch.grid(self.fixed)
            self.loops.look(dim, (self.probe_tile[dim], extent), other, grid)

    def longest_span(self, loop: For) -> int:
        """The extent that the loop walks along, where its bounds depend on loaded data."""
        for item in self.analysis.loops[0].loads:
            args = self.request.launch.args
            if item.is_copied:
                continue
            given = [args.get(t.name) for t in tensors_of(item.block.tensor)]
            for dim, offset in enumerate(item.block.offsets):
                spans = [g.shape[dim] for g in given if isinstance(g, Extents)]
                if offset is loop.iv and spans:
                    return max(spans)
        return 4096

    def host_args(self, graph: TileGraph) -> dict[Value, Any]:
        launch = self.request.launch
        out: dict[Value, Any] = {}
        for arg in graph.args:
            given = launch.args[arg.name]
            spec = self.request.specs[arg.name]
            out[arg] = (
                np.asarray(given, spec.dtype.numpy) if isinstance(spec, ScalarSpec) else given
            )
        return out

    def of(self, tile: tuple[int, int, int], grid: Grid) -> Problem:
        """What is asked for of a tile with which the launch has a grid."""
        loop = self.analysis.loops[0]
        step = int(loop.loop.step.defining_op.value)  # type: ignore[union-attr]
        if step == self.probe_tile[2]:
            step = tile[2]
        return Problem(
            grid,
            -(-self.span // step) * self.outer_of(tile, grid),
            tile,
            self.shape.itemsize,
            *self.memory,
            self.staged,
            self.shape.num_dots,
            0 if self.shape.partial is None else self.shape.partial.adds(tile[2]),
            self.padding(tile, grid),
            self.rereads(grid),
            self.shape.streamable,
            bool(self.shape.vectors),
            self.cuts_blocks(tile),
            self.shape.copies(tile, indexed=True) * ROW_COPY_CLOCKS
            + self.shape.copies(tile, indexed=False) * COPY_CLOCKS,
            any(0 < rows <= FEW_ROWS for rows in self.rows),
            0.0 if self.shape.made is None else self.shape.made.of_slot(tile),
            self.shape.itemsizes if self.shape.made is not None else (0, 0),
        )

    def cuts_blocks(self, tile: tuple[int, int, int]) -> bool:
        """Whether columns of a tile lie in blocks (of scales) that it does not end with."""
        sizes: tuple[int, ...] = self.graph.facts.get("blocks", ())
        return any(size % tile[1] and tile[1] % size for size in sizes)

    @functools.cached_property
    def memory(self) -> tuple[bool, int, int]:
        """Whether loaded rows lie whole L2 lines apart, and the bytes loaded and stored."""
        loaded = {n for f in self.analysis.loops for o in f.loads for n in loaded_names(o)}
        stored = {n for s in self.analysis.stores for n in names_of(s.tensor)}
        copied = sum(self.copied_bytes(o) for f in self.analysis.loops for o in f.loads)
        return self.pitch_128(loaded), self.bytes_of(loaded) + copied, self.bytes_of(stored)

    def copied_bytes(self, item: OperandLoad) -> int:
        """Bytes of an operand that threads copy, as if no two programs along its axes shared it.

        They are no more than the memory that it lies in, where the launch says how much that is.
        """
        if not isinstance(item.op, pointer.Load):
            return 0
        grid = self.request.launch.grid(self.fixed)
        tiles = prod(grid[axis] for axis in item.axes)
        step = constant_value(self.analysis.loops[0].loop.step)
        trips = max(1, self.span // int(step or 1))
        elements = tiles * trips * prod(item.smem.shape)
        name = read_argument(self.graph, item.op.pointer)
        held = elements_of(self.request.launch.args.get(name)) if name else 0
        return min(elements, held or elements) * item.smem.dtype.bytes

    def rereads(self, grid: Grid) -> int:
        """How many programs read each tile of the operand with the most bytes."""
        return prod(grid[axis] for axis in range(3) if axis not in self.largest.axes)

    @functools.cached_property
    def largest(self) -> OperandLoad:
        """The operand with the most bytes."""
        loads = self.analysis.loops[0].loads
        return max(loads, key=lambda o: self.bytes_of(loaded_names(o)) + self.copied_bytes(o))

    def padding(self, tile: tuple[int, int, int], grid: Grid) -> tuple[float, float]:
        """Per operand, the share of the loaded rows that lies outside of the tensor.

        None is known where loaded data or a loop says which rows a program loads.
        """
        out: list[float] = []
        for rows, extent, axes in zip(self.rows, tile, self.shape.operand_axes, strict=False):
            loaded = extent * prod(grid[axis] for axis in axes)
            out.append(max(0.0, 1 - rows / loaded) if loaded and rows else 0.0)
        return (out[0], out[1])

    @functools.cached_property
    def rows(self) -> tuple[float, float]:
        """Per operand, the rows that all programs load together, 0 where the host cannot tell.

        What it can tell does not depend on how many programs there are.
        """
        found = self.analysis.loops[0]
        grid = self.request.launch.grid(self.fixed)
        values = HostValues(self.host_args(self.graph), grid, (0, 0, 0))
        out: list[float] = []
        for side, axes in enumerate(self.shape.operand_axes):
            mine = [o for o in found.loads if o.axes == axes]
            placed = all(is_placed(o, values) for o in mine)
            names = {n for o in mine for n in loaded_names(o)}
            rows = self.bytes_of(names) / max(1, self.span * self.bytes_of_K(side))
            out.append(rows if placed else 0.0)
        return (out[0], out[1])

    def bytes_of_K(self, side: int) -> float:
        """Bytes of an operand's row that an element of the loop's span stands for.

        The dots of an iteration may share out its span, and make their operands of one load.
        """
        s, found = self.shape, self.analysis.loops[0]
        if s.made is None:
            return s.itemsize
        step = int(constant_value(found.loop.step) or 1)
        return self.probe_tile[2] * s.num_operands[side] * s.itemsizes[side] / step

    def pitch_128(self, names: set[str]) -> bool:
        specs = [self.request.specs[n] for n in names]
        return all(s.pitch_128 for s in specs if isinstance(s, TensorSpec))

    def bytes_of(self, names: set[str]) -> int:
        total = 0
        for n in sorted(names):
            spec, given = self.request.specs[n], self.request.launch.args.get(n)
            if isinstance(spec, TensorSpec) and isinstance(given, Extents):
                total += given.elements * spec.dtype.bytes
        return total
