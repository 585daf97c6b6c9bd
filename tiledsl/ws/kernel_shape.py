"""What the planner needs to know of a kernel besides the extents of its tiles."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from tiledsl.dtypes import float32
from tiledsl.ir.op import Region
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.epilogue_channel import channel_loads
from tiledsl.ws.epilogue_chunks import LOADS_OF_CHUNK
from tiledsl.ws.epilogues import in_blocks
from tiledsl.ws.epilogues import is_rounded_sum
from tiledsl.ws.epilogues import separable
from tiledsl.ws.made_work import MadeWork
from tiledsl.ws.made_work import made_work
from tiledsl.ws.operands import Copies
from tiledsl.ws.partial_work import Partial
from tiledsl.ws.partial_work import partial_work
from tiledsl.ws.plan import Plan
from tiledsl.ws.slot_vectors import VectorSize
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import slot_vectors
from tiledsl.ws.slot_vectors import vector_sizes


@dataclass(frozen=True)
class KernelShape:
    """What the planner needs of a kernel besides the tile extents.

    operand_axes: per side (a, b) the grid axes its loads depend on. bound_axes: those of the loop's
    bounds.
    mn_major: per side, whether the operand is contiguous along M or N instead of K.
    num_operands: per side, different loads of a loop; dots may share them.
    copied: those that threads copy, by side. plain_axes: per side, as in OperandLoad.
    made: work on operand a, where it is made in registers. itemsizes: of the loaded elements, per
    side. num_sums: accumulators of the dots.
    """

    operand_axes: tuple[frozenset[int], frozenset[int]]
    bound_axes: frozenset[int]
    mn_major: tuple[bool, bool]
    itemsize: int
    num_dots: int
    num_loops: int
    zero_init: bool
    accumulates_only: bool
    single_top_store: Store | None
    num_stores: int
    out_bits: int
    epilogue_loads: tuple[tuple[int, ...], ...]
    computes: bool
    separable: bool
    in_blocks: bool
    probe: tuple[int, int]
    top_level: bool
    partial: Partial | None = None
    streamable: int = 0
    row_sums: bool = False
    acc_bits: int = 32
    sums_f32: bool = True
    num_operands: tuple[int, int] = (1, 1)
    vectors: tuple[VectorSize, ...] = ()
    copied: tuple[tuple[int, Copies], ...] = ()
    plain_axes: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    made: MadeWork | None = None
    itemsizes: tuple[int, int] = (2, 2)
    num_sums: int = 1

    def read_once(self, unit_axes: Collection[int]) -> tuple[bool, bool]:
        """Per side, whether no two programs read a tile, in a grid of extent 1 along some axes."""
        a, b = (axes | set(unit_axes) >= {0, 1, 2} for axes in self.plain_axes)
        return a, b

    def copies(self, tile: tuple[int, int, int], *, indexed: bool) -> int:
        """Copies of a thread of the load role in an iteration: of rows by index, or of all else."""
        found = [(side, c) for side, c in self.copied if c.is_indexed == indexed]
        sides = [(tile[side] * tile[2] * self.itemsize, c.width_bytes) for side, c in found]
        return sum(-(-n // (128 * width_bytes)) for n, width_bytes in sides)

    def vector_bytes(self, tile: tuple[int, int, int]) -> int:
        """Bytes of the vectors that come in a slot beside the operands."""
        return sum(v.bytes_in(tile, self.probe) for v in self.vectors)

    def sum_regs(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Registers of a consumer thread for the tiles that a loop keeps.

        A tile whose rows are added up beside the products is read as 16-bit elements.
        """
        rows = tile[0] * tile[2] // (128 * plan.warpgroups_per_tile) if self.row_sums else 0
        sums = (
            accumulator_regs(plan, tile, self.tiles_alive(tile, plan.mma_depth))
            * self.acc_bits
            // 32
        )
        made = self.made.registers(plan, tile) if self.made is not None else 0
        return sums + rows * 3 // 4 + made

    def stored_elements(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Elements of a consumer thread that the loop leaves behind."""
        return accumulator_regs(plan, tile, self.num_sums if self.partial is None else 1)

    def tiles_alive(self, tile: tuple[int, int, int], depth: int = 1) -> int:
        """Tiles of the product's size that a loop keeps in registers.

        depth: iterations whose products are in flight, where CUDA cores go on with these.
        """
        return self.num_sums if self.partial is None else self.partial.tiles_alive(tile[2], depth)

    @property
    def may_split(self) -> bool:
        """Whether CTAs may share out the iterations; they have one buffer of partial sums."""
        sums = self.num_sums if self.partial is None else self.partial.carried
        dots = self.num_dots if self.made is None else 1
        alone = self.num_loops == 1 and self.top_level and sums == 1 and dots == 1
        can = self.zero_init and self.separable and self.in_blocks and self.sums_f32
        return alone and can

    def epilogue_regs(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Registers of tiles that the epilogue loads; a thread keeps 2 of 8 columns of a row."""
        groups = plan.warpgroups_per_tile
        total = 0
        for shape in self.epilogue_loads:
            wide = [self.extent(n, tile) for n in shape if n > 1]
            elements = prod(wide)
            total += elements // 8 if len(wide) < 2 else elements // (128 * groups)
        return total

    def chunk_regs(self, plan: Plan, tile: tuple[int, int, int], *, staged: bool) -> int:
        """As `epilogue_regs`, of what is loaded with one staged chunk where chunks are made alone.

        Most of it has 16 bits.
        """
        total = self.epilogue_regs(plan, tile)
        width = 128 * 8 // self.out_bits
        if not staged or plan.deferred or width >= tile[1]:
            return total
        return -(-total * width // tile[1]) // (2 * LOADS_OF_CHUNK)

    def extent(self, n: int, tile: tuple[int, int, int]) -> int:
        """An extent of the probed kernel in a kernel of another tile."""
        if n == self.probe[1]:
            return tile[1]
        return tile[0] if n == self.probe[0] else n


def kernel_shape(analysis: Analysis, body: Region) -> KernelShape:
    """Facts of an analysed kernel."""
    first = analysis.loops[0]
    axes_a: frozenset[int] = frozenset()
    axes_b: frozenset[int] = frozenset()
    bounds: frozenset[int] = frozenset()
    for found in analysis.loops:
        a, b = operand_sides(found)
        axes_a |= a
        axes_b |= b
        bounds |= program_axes(found.loop.lower) | program_axes(found.loop.upper)
    acc = first.dots[0].acc.type
    assert isinstance(acc, TileType)
    stores = analysis.stores
    tops = [s for s in stores if s.parent is body]
    top_level = all(f.loop.parent is body for f in analysis.loops)
    majors = (mn_major(first, "a"), mn_major(first, "b"))
    out_bits = max((tensor_type(s.tensor, "store").dtype.bits for s in stores), default=32)
    return KernelShape(
        (axes_a, axes_b),
        bounds,
        majors,
        itemsize(first),
        len(first.dots),
        len(analysis.loops),
        all(f.can_split for f in analysis.loops),
        True,
        tops[0] if len(tops) == 1 and len(stores) == 1 else None,
        len(stores),
        out_bits,
        epilogue_loads(analysis),
        not all(is_rounded_sum(s.value) for s in stores),
        separable(body, analysis),
        in_blocks(body),
        (int(acc.shape[0]), int(acc.shape[1])),
        top_level,
        next((p for f in analysis.loops if (p := partial_work(f)) is not None), None),
        len(channel_loads(body, stores)),
        any(f.beside for f in analysis.loops),
        acc.dtype.bits if not first.partial else 32,
        acc.dtype == float32,
        operand_counts(first),
        tuple(v for f in analysis.loops for v in vector_sizes(f)),
        copied_sides(first),
        plain_sides(analysis),
        next((w for f in analysis.loops if (w := made_work(f)) is not None), None),
        itemsizes(first),
        len(first.heads),
    )


def epilogue_loads(analysis: Analysis) -> tuple[tuple[int, ...], ...]:
    """Block shapes of loads that feed no dot; vectors of slots take a few registers in a loop."""
    shapes = [*analysis.epilogue_loads]
    for op in loads_of(v for found in analysis.loops for v in slot_vectors(found)):
        if isinstance(op, Load):
            shapes.remove(op.block_shape)
    return tuple(shapes)


def operand_counts(found: DotLoop) -> tuple[int, int]:
    """Different loads that are operands a of a loop's dots, and b."""
    a, b = (len({found.source(d, side)[0].id for d in found.dots}) for side in (0, 1))
    return a, b


def itemsize(found: DotLoop) -> int:
    """Bytes of an element that the tensor core multiplies."""
    return itemsizes(found)[1 if found.made else 0]


def itemsizes(found: DotLoop) -> tuple[int, int]:
    """Bytes of a loaded element of operand a, and of operand b."""
    by_id = {o.op.id: o.smem.dtype.bytes for o in found.loads}
    a, b = (by_id[found.source(found.dots[0], side)[0].id] for side in (0, 1))
    return a, b


def copied_sides(found: DotLoop) -> tuple[tuple[int, Copies], ...]:
    """The operands of a loop that threads copy, by side."""
    out: dict[int, tuple[int, Copies]] = {}
    by_id = {o.op.id: o for o in found.loads}
    for dot in found.dots:
        for side in (0, 1):
            load, _ = found.source(dot, side)
            copies = by_id[load.id].copies
            if copies is not None:
                out[load.id] = side, copies
    return tuple(out.values())


def operand_sides(found: DotLoop) -> tuple[frozenset[int], frozenset[int]]:
    """Grid axes behind operand a and operand b of a loop's dots."""
    return sides_of(found, {o.op.id: o.axes for o in found.loads})


def sides_of(
    found: DotLoop, by_id: dict[int, frozenset[int]]
) -> tuple[frozenset[int], frozenset[int]]:
    """Axes of the loads of a loop, by id, for operands a and operands b of its dots."""
    axes: dict[str, frozenset[int]] = {"a": frozenset(), "b": frozenset()}
    for dot in found.dots:
        for side, name in enumerate("ab"):
            axes[name] |= by_id[found.source(dot, side)[0].id]
    return axes["a"], axes["b"]


def plain_sides(analysis: Analysis) -> tuple[frozenset[int], frozenset[int]]:
    """The plain axes behind operands a of dots, and behind operands b."""
    a: frozenset[int] = frozenset()
    b: frozenset[int] = frozenset()
    for found in analysis.loops:
        of_a, of_b = sides_of(found, {o.op.id: o.plain_axes for o in found.loads})
        a |= of_a
        b |= of_b
    return a, b


def mn_major(found: DotLoop, side: str) -> bool:
    """Whether an operand of the first dot is contiguous along M (a) or N (b)."""
    load, transposed = found.source(found.dots[0], "ab".index(side))
    smem = next(o.smem for o in found.loads if o.op is load)
    major = smem.major if not transposed else 1 - smem.major
    return major == (0 if side == "a" else 1)


def accumulator_regs(plan: Plan, tile: tuple[int, int, int], dots: int) -> int:
    """Accumulator registers of a consumer thread."""
    return tile[0] * tile[1] * dots // (128 * plan.warpgroups_per_tile)
