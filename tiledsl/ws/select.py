"""From a launch to ranked plans: probes the kernel once, prices, and lowers the winners.

`tl.auto` constexprs are followed into the dot's dimensions; those of the winner replace the
probe's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from math import prod
from typing import Any
from typing import Protocol
from typing import TypeVar

import numpy as np

from tiledsl.errors import LaunchError
from tiledsl.errors import ResourceError
from tiledsl.errors import SyntaxNotSupported
from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import Declined
from tiledsl.ws.analysis import analyze
from tiledsl.ws.cost import COPY_CLOCKS
from tiledsl.ws.cost import ROW_COPY_CLOCKS
from tiledsl.ws.cost import Cost
from tiledsl.ws.cost import Problem
from tiledsl.ws.kernel_shape import kernel_shape
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value
from tiledsl.ws.plan import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.planner import Planner
from tiledsl.ws.planner import Ranked
from tiledsl.ws.single_role import Limits
from tiledsl.ws.single_role import plan_single
from tiledsl.ws.stores import stored_geometry

Grid = tuple[int, int, int]
PROBE = {"M": 128, "N": 128, "K": 64}
NO_ROOM = "no plan fits registers and shared memory; take a smaller tile"
LATE = (
    "no plan fits registers and shared memory, or the threads of a load role copy too slowly for it"
)
ALL_M = (8, 16, 32, 64, 128, 192, 256)
FEW_ROWS = 64
ALL_N = (8, 16, 32, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)


@dataclass(frozen=True)
class Extents:
    """Shape and strides (elements) of a tensor argument of a launch."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Launch:
    """The launch that plans are priced for.

    args: `Extents` per tensor, numbers per scalar, by name. grid: the user's grid for given
    constexprs. fixed_grid: the user gave numbers, which do not depend on constexprs.
    """

    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    grid: Callable[[Mapping[str, object]], Grid] = lambda _: (32, 32, 1)
    fixed_grid: bool = False


class RequestLike(Protocol):
    """What selection reads of a compile request."""

    @property
    def specs(self) -> Mapping[str, Spec]: ...
    @property
    def constants(self) -> Mapping[str, object]: ...
    @property
    def launch(self) -> Launch: ...
    @property
    def overrides(self) -> Overrides: ...
    @property
    def num_warps(self) -> int | None: ...
    @property
    def target(self) -> Target: ...


RequestT = TypeVar("RequestT", bound=RequestLike)
Lower = Callable[[RequestT, Mapping[str, object]], TileGraph]


@dataclass(frozen=True)
class Choice:
    """A priced plan with the graph it is for. registers: that it takes of a consumer thread."""

    graph: TileGraph
    plan: Plan
    cost: Cost
    registers: int


@dataclass
class Ranking:
    """Plans of one launch, cheapest first; graphs are lowered when a plan is taken.

    graph: for the single-role kernel. declined: why nothing is specialised, if there are no plans.
    auto_dims: which dimensions of the dots each `tl.auto` constexpr is, where a flow may be tried.
    settle: the plan of an item with what its price does not depend on.
    flow_first: whether the schedule of a flow is the better one, where there is one: sums of rows
    that are read beside the products cost the issuing warpgroup more than a flow's, and so does
    math on an operand.
    """

    graph: TileGraph
    declined: list[Declined] = field(default_factory=list[Declined])
    items: list[Ranked] = field(default_factory=list[Ranked])
    auto_dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    lower: Callable[[tuple[int, int, int]], TileGraph] | None = None
    settle: Callable[[Ranked], Plan] | None = None
    flow_first: bool = False

    def take(self, limit: int) -> Choice | None:
        """The cheapest plan left that takes at most `limit` registers; it leaves the ranking."""
        for at, item in enumerate(self.items):
            if item.registers <= limit:
                del self.items[at]
                assert self.lower is not None
                assert self.settle is not None
                plan = self.settle(item)
                return Choice(self.lower(item.tile), plan, item.cost, item.registers)
        return None


def choose(request: RequestT, lower: Lower[RequestT]) -> Ranking:
    """The plans of a launch, or the reasons why the kernel is not specialised."""
    autos = {k: v for k, v in request.constants.items() if isinstance(v, Auto)}
    probe = {
        k: AutoInt(_first(k, autos[k]), k) if k in autos else v
        for k, v in request.constants.items()
    }
    graph = lower(request, probe)
    analysis = analyze(graph)
    fixed = {k: int(v) if isinstance(v, AutoInt) else v for k, v in probe.items()}
    check_grid(request.launch, graph, set(autos))

    def plain(declined: list[Declined]) -> Ranking:
        single = _single_graph(request, lower, graph, autos, fixed)
        return Ranking(single, declined, auto_dims=auto_dims(graph, set(autos)))

    if request.overrides.warp_specialize is False:
        return plain([Declined("warp_specialize", "switched off by the launch option")])
    if not analysis.loops or analysis.declined:
        return plain(analysis.declined)
    selector = _Selector(request, graph, analysis, autos, fixed)
    ranked = selector.rank()
    if not ranked:
        at = analysis.loops[0].loop.loc
        why = LATE if analysis.copies else NO_ROOM
        return plain([Declined("warp_specialize", why, at)])
    graphs: dict[tuple[int, int, int], TileGraph] = {}

    def lowered(tile: tuple[int, int, int]) -> TileGraph:
        if tile not in graphs:
            values = {**fixed, **selector.constants_of(tile)}
            same = all(probe[k] == values[k] for k in autos)
            graphs[tile] = graph if same else lower(request, values)
        return graphs[tile]

    single = _single_graph(request, lower, graph, autos, fixed)
    flow_first = any(found.beside for found in analysis.loops) or selector.multiplies_more(
        ranked[0]
    )
    dims = auto_dims(graph, set(autos)) if flow_first else {}
    return Ranking(single, [], ranked, dims, lowered, selector.settled, flow_first)


def probe_constants(constants: Mapping[str, object]) -> dict[str, object]:
    """Constexpr values to look at a kernel with: something for those that are `tl.auto`."""
    return {k: AutoInt(_first(k, v), k) if isinstance(v, Auto) else v for k, v in constants.items()}


def _first(name: str, auto: Auto) -> int:
    if auto.choices:
        return auto.choices[0]
    upper = name.upper()
    for letter, value in PROBE.items():
        if letter in upper.replace("BLOCK", "").replace("SIZE", "").replace("TILE", ""):
            return value
    return 128


def _single_graph(
    request: RequestT,
    lower: Lower[RequestT],
    graph: TileGraph,
    autos: Mapping[str, Auto],
    fixed: Mapping[str, object],
) -> TileGraph:
    """The graph for the single-role kernel.

    Autos that feed a dot take what one or two warpgroups hold well.
    """
    if not autos:
        return graph
    roles = auto_dims(graph, set(autos))
    made = graph
    for M, N, K in _single_tiles(graph):
        values = dict(fixed)
        for name, dims in roles.items():
            if not autos[name].choices:
                values[name] = {"M": M, "N": N, "K": K}[dims[0]]
        made = graph if values == fixed else lower(request, values)
        try:
            plan_single(made, request.num_warps, request.target, limits=Limits(one_form=False))
        except ResourceError:
            continue
        break
    return made


def _single_tiles(graph: TileGraph) -> Iterator[tuple[int, int, int]]:
    """Tiles for the single role, the best one first.

    f32 operands are split in two, and f64 takes twice the registers on the CUDA cores.
    """
    types = [d.a.type for d in graph.find(Dot)]
    most = max((t.dtype.bytes for t in types if isinstance(t, TileType)), default=2)
    K = {4: 32, 8: 16}.get(most, 64)
    for M, N in ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32)):
        if most < 8 or M * N <= 32 * 32:
            yield M, N, K


def check_grid(launch: Launch, graph: TileGraph, autos: set[str]) -> None:
    """Refuses a grid that cannot follow the tile that is picked.

    Raises:
        LaunchError: the grid is a tuple, and a `tl.auto` constexpr is how many rows or columns of a
            dot a program computes, or what the number of a program is multiplied by.
    """
    if not (launch.fixed_grid and autos):
        return
    dims = auto_dims(graph, autos)
    tiles = [name for name, letters in dims.items() if letters in (("M",), ("N",))]
    tiles += [name for name in graph.facts.get("grid_factors", ()) if name not in tiles]
    if tiles:
        raise LaunchError(
            f"grid: {' and '.join(tiles)} {'are' if tiles[1:] else 'is'} picked by the compiler "
            "(tl.auto), "
            "so a tuple cannot say how many programs there are",
            hint="give a function, "
            + "grid = lambda meta: (tl.cdiv(M, meta['BM']), ...)".replace("BM", tiles[0]),
        )


def auto_dims(graph: TileGraph, autos: set[str]) -> dict[str, tuple[str, ...]]:
    """Which dimensions (M, N, K) of the dots each auto constexpr is."""
    out: dict[str, set[str]] = {}
    for dot in graph.find(Dot):
        a, b = dot.a.type, dot.b.type
        assert isinstance(a, TileType)
        assert isinstance(b, TileType)
        for letter, extent in (
            ("M", a.shape[0]),
            ("K", a.shape[1]),
            ("K", b.shape[0]),
            ("N", b.shape[1]),
        ):
            if isinstance(extent, AutoInt) and extent.name in autos:
                out.setdefault(extent.name, set()).add(letter)
    return {name: tuple(sorted(dims)) for name, dims in out.items()}


def names_of(tensor: Value) -> set[str]:
    """Names of the arguments that a tensor may be."""
    return {t.name for t in tensors_of(tensor)}


def _is_placed(item: OperandLoad, values: HostValues) -> bool:
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


class _Selector:
    """Prices tiles and plans of one kernel for one launch."""

    def __init__(
        self,
        request: RequestLike,
        graph: TileGraph,
        analysis: Analysis,
        autos: Mapping[str, Auto],
        fixed: Mapping[str, object],
    ) -> None:
        self.request = request
        self.graph = graph
        self.analysis = analysis
        self.autos = autos
        self.fixed = fixed
        self.shape = kernel_shape(analysis, graph.body)
        self.dims = auto_dims(graph, set(autos))
        unknown = [k for k in autos if k not in self.dims and not autos[k].choices]
        if unknown:
            raise SyntaxNotSupported(
                f"tl.auto: constexpr {unknown[0]} is no tile dimension of a dot, "
                "so there is no model to pick it by",
                hint=f"give choices, tl.auto(64, 128), or a value for {unknown[0]}",
            )
        dot = analysis.loops[0].dots[0]
        a, b = dot.a.type, dot.b.type
        assert isinstance(a, TileType)
        assert isinstance(b, TileType)
        self.probe_tile = (int(a.shape[0]), int(b.shape[1]), int(a.shape[1]))
        probe = Plan(num_consumers=1, mma_depth=1)
        self.staged = bool(stored_geometry(analysis.stores, probe)[0])
        self.span = self.loop_span()
        self.outer = self.outer_trips()
        self.planner = Planner(self.shape, request.overrides, request.target)

    def constants_of(self, tile: tuple[int, int, int]) -> dict[str, int]:
        """Values of the auto constexprs for a tile."""
        at = dict(zip("MNK", tile, strict=True))
        return {name: at[dims[0]] for name, dims in self.dims.items()}

    def tiles(self) -> list[tuple[int, int, int]]:
        """Tiles to price: all combinations of the free dimensions."""
        free: dict[str, tuple[int, ...]] = {}
        for name, dims in self.dims.items():
            for d in dims:
                choices = self.autos[name].choices or self.default_choices(d)
                free[d] = choices if d not in free else tuple(c for c in free[d] if c in choices)
        M, N, K = (free.get(d, (n,)) for d, n in zip("MNK", self.probe_tile, strict=True))
        out = [(m, n, k) for m in M for n in N for k in K]
        if "K" in free:
            out = [t for t in out if t[2] * self.row_itemsize <= self.longest_row_bytes(t[0])]
        if any(len(dims) > 1 for dims in self.dims.values()):
            out = [t for t in out if self.consistent(t)]
        return out

    @property
    def row_itemsize(self) -> int:
        """Bytes of an element by which the extent of K is picked: of the one that is made."""
        return self.shape.itemsizes[0] if self.shape.made is not None else self.shape.itemsize

    def longest_row_bytes(self, M: int) -> int:
        """Of K in a slot. Longer rows pay where little is computed on them."""
        if M <= 32:
            return 512
        return 256 if M <= FEW_ROWS and 0 < self.rows[0] <= FEW_ROWS else 128

    def consistent(self, tile: tuple[int, int, int]) -> bool:
        at = dict(zip("MNK", tile, strict=True))
        return all(len({at[d] for d in dims}) == 1 for dims in self.dims.values())

    def default_choices(self, dim: str) -> tuple[int, ...]:
        s = self.shape
        if dim == "K":
            short = s.made is not None and not any(0 < n <= FEW_ROWS for n in self.rows)
            rows = (64, 128, 256) if short else (128, 256, 512)
            return tuple(n // self.row_itemsize for n in rows)
        side = 0 if dim == "M" else 1
        listed = ALL_M if dim == "M" else ALL_N
        if s.mn_major[side]:
            return tuple(n for n in listed if n % 64 == 0)
        # Few rows, which one tile takes as they are: 48 of them, not 64.
        few = -(-int(self.rows[side]) // 8) * 8
        return (*listed, few) if 0 < few < FEW_ROWS and few not in listed else listed

    def loop_span(self) -> int:
        """upper - lower of the first dot loop for a program in the middle of the grid."""
        launch: Launch = self.request.launch
        loop = self.analysis.loops[0].loop
        try:
            grid = launch.grid(self.fixed)
            middle = (grid[0] // 2, grid[1] // 2, grid[2] // 2)
            values = HostValues(self.host_args(), grid, middle)
            return max(0, int(values.get(loop.upper)) - int(values.get(loop.lower)))
        except (Unknown, KeyError):
            return self.longest_span(loop)

    def outer_trips(self) -> int:
        """How often a program in the middle of the grid runs the first dot loop."""
        launch: Launch = self.request.launch
        grid = launch.grid(self.fixed)
        values = HostValues(self.host_args(), grid, (grid[0] // 2, grid[1] // 2, grid[2] // 2))
        count, region = 1, self.analysis.loops[0].loop.parent
        while region is not None:
            loop = region.parent
            if isinstance(loop, For):
                try:
                    low, high, step = (
                        int(values.get(v)) for v in (loop.lower, loop.upper, loop.step)
                    )
                    count *= max(1, -(-(high - low) // step)) if step > 0 else 1
                except (Unknown, KeyError):
                    pass
            region = loop.parent if loop is not None else None
        return count

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

    def host_args(self) -> dict[Value, Any]:
        launch: Launch = self.request.launch
        out: dict[Value, Any] = {}
        for arg in self.graph.args:
            given = launch.args[arg.name]
            spec = self.request.specs[arg.name]
            out[arg] = (
                np.asarray(given, spec.dtype.numpy) if isinstance(spec, ScalarSpec) else given
            )
        return out

    def problem(self, tile: tuple[int, int, int]) -> Problem:
        launch: Launch = self.request.launch
        grid = launch.grid({**self.fixed, **self.constants_of(tile)})
        loop = self.analysis.loops[0]
        step = int(loop.loop.step.defining_op.value)  # type: ignore[union-attr]
        if step == self.probe_tile[2]:
            step = tile[2]
        return Problem(
            grid,
            -(-self.span // step) * self.outer,
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
        """Bytes of an operand that threads copy, as if no two programs along its axes shared it."""
        if not item.is_copied:
            return 0
        grid = self.request.launch.grid(self.fixed)
        tiles = prod(grid[axis] for axis in item.axes)
        step = constant_value(self.analysis.loops[0].loop.step)
        trips = max(1, self.span // int(step or 1))
        return tiles * trips * prod(item.smem.shape) * item.smem.dtype.bytes

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
        values = HostValues(self.host_args(), grid, (0, 0, 0))
        out: list[float] = []
        for side, axes in enumerate(self.shape.operand_axes):
            mine = [o for o in found.loads if o.axes == axes]
            placed = all(_is_placed(o, values) for o in mine)
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

    def rank(self) -> list[Ranked]:
        return self.planner.best(self.tiles(), self.problem)

    def multiplies_more(self, best: Ranked) -> bool:
        """Whether much is computed for an operand, and neither streamed nor split."""
        made, plan = self.shape.made, best.plan
        return made is not None and made.is_heavy and plan.split_k == 1 and not plan.unit_axes

    def settled(self, item: Ranked) -> Plan:
        """The plan of a ranked tile, complete."""
        return self.planner.settled(item, self.problem(item.tile))
