"""From a launch to ranked plans: probes the kernel once, prices, and lowers the winners.

`tl.auto` constexprs are followed into the dot's dimensions; those of the winner replace the
probe's.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import TypeVar

from tiledsl.errors import ResourceError
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import Declined
from tiledsl.ws.analysis import analyze
from tiledsl.ws.autos import auto_dims
from tiledsl.ws.autos import check_grid
from tiledsl.ws.autos import probe_constants
from tiledsl.ws.cost import Cost
from tiledsl.ws.cost import Problem
from tiledsl.ws.kernel_shape import kernel_shape
from tiledsl.ws.launch import RequestLike
from tiledsl.ws.plan import Plan
from tiledsl.ws.planner import Planner
from tiledsl.ws.planner import Ranked
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_role import plan_single
from tiledsl.ws.tile_choices import TileChoices
from tiledsl.ws.tile_problem import TileProblems

NO_ROOM = "no plan fits registers and shared memory; take a smaller tile"
LATE = (
    "no plan fits registers and shared memory, or the threads of a load role copy too slowly for it"
)

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
    probe = probe_constants(request.constants)
    graph = lower(request, probe)
    analysis = analyze(graph)
    fixed = {k: int(v) if isinstance(v, AutoInt) else v for k, v in probe.items()}
    check_grid(graph, set(autos), fixed_grid=request.launch.fixed_grid)

    def plain(declined: list[Declined]) -> Ranking:
        single = _single_graph(request, lower, graph, autos, fixed)
        return Ranking(single, declined, auto_dims=auto_dims(graph, set(autos)))

    if request.overrides.warp_specialize is False:
        return plain([Declined("warp_specialize", "switched off by the launch option")])
    if not analysis.loops or analysis.declined:
        return plain(analysis.declined)
    selector = _Selector(request, graph, analysis, autos, fixed)
    selector.look_at_tiles(lambda values: lower(request, values))
    ranked = selector.rank()
    if not ranked:
        at = analysis.loops[0].loop.loc
        why = LATE if analysis.copies else NO_ROOM
        return plain([Declined("warp_specialize", why, at)])
    graphs: dict[tuple[int, int, int], TileGraph] = {}

    def lowered(tile: tuple[int, int, int]) -> TileGraph:
        if tile not in graphs:
            values = {**fixed, **selector.choices.constants_of(tile)}
            same = all(probe[k] == values[k] for k in autos)
            graphs[tile] = graph if same else lower(request, values)
        return graphs[tile]

    single = _single_graph(request, lower, graph, autos, fixed)
    flow_first = any(found.beside for found in analysis.loops) or selector.multiplies_more(
        ranked[0]
    )
    dims = auto_dims(graph, set(autos)) if flow_first else {}
    return Ranking(single, [], ranked, dims, lowered, selector.settled, flow_first)


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
        self.launch = request.launch
        self.fixed = fixed
        self.shape = kernel_shape(analysis, graph.body)
        dims = auto_dims(graph, set(autos))
        unknown = [k for k in autos if k not in dims and not autos[k].choices]
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
        probe_tile = (int(a.shape[0]), int(b.shape[1]), int(a.shape[1]))
        self.problems = TileProblems(request, graph, analysis, self.shape, probe_tile, fixed)
        self.choices = TileChoices(self.shape, autos, dims, probe_tile, self.problems.rows)
        self.planner = Planner(self.shape, request.overrides, request.target)

    def look_at_tiles(self, lower: Callable[[Mapping[str, object]], TileGraph]) -> None:
        """Looks at how loops around the dot loop run with the smallest tile that can be chosen."""
        if not self.problems.loops.around:
            return
        tile = self.problems.probe_tile
        for dim in range(2):
            extents = {t[dim] for t in self.choices.tiles()} - {tile[dim]}
            for other in sorted(extents):
                probe = (other, *tile[1:]) if dim == 0 else (tile[0], other, tile[2])
                values = {**self.fixed, **self.choices.constants_of(probe)}
                try:
                    graph = lower(values)
                except TileError:
                    continue
                self.problems.look_at_tile(dim, other, graph)
                break

    def problem(self, tile: tuple[int, int, int]) -> Problem:
        """What the launch asks for of a tile, with the grid that it has then."""
        constants = self.choices.constants_of(tile)
        return self.problems.of(tile, self.launch.grid({**self.fixed, **constants}))

    def rank(self) -> list[Ranked]:
        return self.planner.best(self.choices.tiles(), self.problem)

    def multiplies_more(self, best: Ranked) -> bool:
        """Whether much is computed for an operand, and neither streamed nor split."""
        made, plan = self.shape.made, best.plan
        return made is not None and made.is_heavy and plan.split_k == 1 and not plan.unit_axes

    def settled(self, item: Ranked) -> Plan:
        """The plan of a ranked tile, complete."""
        return self.planner.settled(item, self.problem(item.tile))
