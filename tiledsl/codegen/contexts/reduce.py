"""Reductions: in registers, then over lanes by shuffles, then over warps by shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import adds_members
from tiledsl.codegen.combining import bind_arguments
from tiledsl.codegen.combining import combine_lambda
from tiledsl.codegen.combining import element_text
from tiledsl.codegen.combining import function_name
from tiledsl.codegen.combining import index_text
from tiledsl.codegen.combining import neutral
from tiledsl.codegen.combining import part_type
from tiledsl.codegen.combining import result_statements
from tiledsl.codegen.combining import return_statement
from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import yields_to
from tiledsl.errors import CodegenError
from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.axis_plan import dense_terms
from tiledsl.ir.layout import Unit
from tiledsl.ir.ops import control
from tiledsl.ir.ops import reduce as ops
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType

FEW_MESSAGES = 0
"""Partial results that all warps of a cluster tell every CTA; of more, CTAs add up theirs first."""


@dataclass(frozen=True)
class ReduceContext:
    """One reduction.

    before: the combine function, or "". declaration: of the partial results, or "". part: their
    name. registers: the function that combines a thread's elements by `own`; elements: a function
    of result `o` and step `r`, or the tile. function: what combines those of several threads.
    lanes, warps: statements, or "". results: statements that move partial results into the results.
    """

    before: str
    declaration: str
    part: str
    registers: str
    elements: str
    own: str
    function: str
    lanes: str
    warps: str
    results: str


@dataclass(frozen=True)
class ReturnContext:
    """The end of a combine function."""

    copies: str


@enters("reduce.reduce")
def enter_reduce(op: ops.Reduce, e: Emission) -> None:
    """Names the arguments of the combine function."""
    if not op.kind:
        bind_arguments(e, op, op.body, len(op.inputs))


@yields_to("reduce.reduce")
def yield_reduce(op: control.Yield, e: Emission) -> ReturnContext:
    """`return t_1;`."""
    return ReturnContext(return_statement(e, op))


@emits("reduce.reduce")
def reduce(op: ops.Reduce, e: Emission, body: str) -> ReduceContext | None:
    """`reduce_registers`, `reduce_lanes` and the exchange between warps, as far as needed."""
    if not any(e.users(r) for r in op.results):
        return None
    types = [tile_type(v, "reduce") for v in op.inputs]
    dtypes = op.dtypes
    plan = AxisPlan(e.layout(types[0]), op.axes)
    part = part_type(dtypes)
    before = ""
    if op.kind or adds_members(op.body):
        function = function_name(op.kind or "sum")
    else:
        function = e.names.fresh("combine")
        before = combine_lambda(e, op, function, part, body)
    masked = _mask(op, e, plan, types[0])
    lifted = bool(masked) and not neutral(op.kind, dtypes)
    if lifted:
        part, function = f"Maybe<{part}>", f"lift({function})"
    declaration, name = _partials(op, e, plan, part, direct=not lifted)
    in_order = op.rising and not lifted and plan.rises
    pairs = _has_pairs(op, plan) and not masked
    element = _element(op, e, plan, masked, lifted=lifted)
    return ReduceContext(
        before,
        declaration,
        name,
        f"reduce_pairs<{plan.count}>" if pairs else _registers(op, plan.count),
        e.text(op.inputs[0]) if pairs else f"[&](int o, int r) {{ {element} }}",
        f"in_order({function})" if in_order else function,
        function,
        "" if op.within_threads else _lanes(plan, name, function),
        _warps(op, e, plan, name, function),
        result_statements(e, op.results, name, "value" if lifted else "") if declaration else "",
    )


def _has_pairs(op: ops.Reduce, plan: AxisPlan) -> bool:
    """Whether an extremum is of 16-bit floats, of which a thread holds neighbours side by side."""
    dtype = tile_type(op.inputs[0], "reduce").dtype
    is_half = dtype.is_float and dtype.bits == 16
    count, regs = plan.count, plan.layout.num_regs
    in_turn = all(
        plan.source_register(o, r) == o * count + r
        for o in range(regs // count)
        for r in range(count)
    )
    fits = is_half and op.kind in ("max", "min") and not op.chains and count % 2 == 0 and in_turn
    return fits and not _is_carried_on(op)


def _is_carried_on(op: ops.Reduce) -> bool:
    """Whether a loop around a reduction carries tiles, such as running maxima.

    Loops of cross entropy, which load the next block meanwhile, took 10 to 18 % longer with pairs
    and a path of its own for one iteration alone (ws/load_ahead.py).
    """
    around = op.parent.parent if op.parent is not None else None
    while around is not None:
        if isinstance(around, control.For):
            return any(isinstance(v.type, TileType) for v in around.carried)
        around = around.parent.parent if around.parent is not None else None
    return False


def _registers(op: ops.Reduce, count: int) -> str:
    """The function over a thread's elements; a tree where they do not fill the chains twice."""
    if op.chains and count % op.chains == 0 and count >= 2 * op.chains:
        return f"reduce_chains<{count}{'' if op.chains == 2 else f', {op.chains}'}>"
    if op.by_three and count > 2:
        return f"reduce_max_by_three<{count}>"
    return f"reduce_registers<{count}>"


def _mask(op: ops.Reduce, e: Emission, plan: AxisPlan, type_: TileType) -> str:
    """The condition under which register `i` holds an element of the tile; empty when all do."""
    conditions: list[str] = []
    for a in op.axes:
        if plan.layout.padded_shape[a] > type_.shape[a]:
            thread = thread_coordinate(e, plan.layout, a, "along")
            conditions.append(f"{add(thread, register_part(plan.layout, a))} < {type_.shape[a]}")
    return " && ".join(conditions)


def _partials(
    op: ops.Reduce, e: Emission, plan: AxisPlan, part: str, *, direct: bool
) -> tuple[str, str]:
    """(declaration, name) of the partial results; they are the result itself where that serves."""
    result = op.results[0]
    regs = plan.result.num_regs
    is_tile = isinstance(result.type, TileType) and not is_packed(result.type.dtype)
    if direct and len(op.results) == 1 and is_tile:
        return "", e.name(result, "x")
    name = e.names.fresh("part")
    return f"{part} {name}[{regs}];", name


def _element(op: ops.Reduce, e: Emission, plan: AxisPlan, masked: str, *, lifted: bool) -> str:
    """The body of the lambda that gives the elements."""
    of_o, of_r = plan.register_terms()
    parts = [
        index_text("o", of_o, plan.result.num_regs) if plan.result.num_regs > 1 else "0",
        index_text("r", of_r, plan.count) if plan.count > 1 else "0",
    ]
    index = " + ".join(p for p in parts if p != "0") or "0"
    if not masked:
        return f"return {element_text(e, op.inputs, op.dtypes, index)};"
    element = element_text(e, op.inputs, op.dtypes, "i")
    value = (
        f"maybe({masked}, {element})"
        if lifted
        else f"{masked} ? {element} : {neutral(op.kind, op.dtypes)}"
    )
    return f"const int i = {index}; return {value};"


def _lanes(plan: AxisPlan, name: str, function: str) -> str:
    lines: list[str] = []
    for p in plan.along(Unit.LANE):
        if p.size & (p.size - 1) or p.stride & (p.stride - 1):
            raise CodegenError(f"reduce: lanes are divided by {p.size} at stride {p.stride}")
        lines.append(f"reduce_lanes<{p.stride}, {p.size}>({name}, {function});")
    return "\n".join(lines)


def _warps(op: ops.Reduce, e: Emission, plan: AxisPlan, name: str, function: str) -> str:
    """Partial results of the warps through shared memory."""
    if not plan.needs_warps or op.within_warps or op.within_threads:
        return ""
    if op.scratch is None:
        raise CodegenError("reduce: the elements lie in several warps, but there is no scratch")
    e.use("warp", "lane")
    at, sync = e.text(op.scratch), sync_text(e, op.barrier)
    places = plan.along(Unit.WARP)
    count = 1
    for p in places:
        count *= p.size
    lane = index_text("lane", dense_terms(plan.across(Unit.LANE)), 32)
    own = " - ".join(
        [
            "warp",
            *(
                index_text("warp", ((p.stride, p.size, p.stride),), plan.layout.num_warps)
                for p in places
            ),
        ]
    )
    k_terms: list[tuple[int, int, int]] = []
    stride = 1
    for p in places:
        k_terms.append((stride, p.size, p.stride))
        stride *= p.size
    source = (
        f"{own} + {index_text('k', k_terms, count)}"
        if own != "warp - warp"
        else index_text("k", k_terms, count)
    )
    sizes = f"{plan.layout.num_warps}, {plan.num_lanes}"
    from_ = f"[&](int k) {{ return {source}; }}"
    if op.barriers is not None and op.cursor is not None:
        form = f"{e.place.num_ctas}, {plan.layout.num_warps}, {op.scratch_bytes() // 2}"
        ring = f"{e.text(op.barriers)}, {e.text(op.cursor)}"
        all_warps = source == "k" and count == plan.layout.num_warps
        if all_warps and count > e.place.num_ctas and count * len(op.inputs) > FEW_MESSAGES:
            form = f"{e.place.num_ctas}, {count // e.place.num_ctas}, {op.scratch_bytes() // 2}"
            own = e.place.own_warp
            return f"reduce_cluster<{form}>({at}, {ring}, {name}, {own}, {function});"
        found = e.names.fresh("arrived")
        return (
            f"const u32 {found} = exchange_partials<{form}>({at}, {ring}, {name}, warp);\n"
            f"reduce_partials<{count}, {sizes}>({found}, {name}, {lane}, {from_}, {function});"
        )
    lines = [sync] if op.guarded else []
    put = f"put_partials<{sizes}>"
    if e.place.num_ctas > 1:
        put = f"put_partials_cluster<{e.place.num_ctas}, {sizes}>"
    lines += [
        f"{put}({at}, {name}, warp, {lane});",
        sync,
        f"reduce_partials<{count}, {sizes}>({at}, {name}, {lane}, {from_}, {function});",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class MergeThreadsContext:
    """Values of threads combined: their declaration, the steps, and the result."""

    declaration: str
    steps: str
    result: str


@emits("reduce.merge_threads")
def merge_threads(op: ops.MergeThreads, e: Emission) -> MergeThreadsContext | None:
    """`float part_1[1] = {x};`, then over lanes and warps as for a reduction."""
    if not e.users(op.result):
        return None
    name, function = e.names.fresh("part"), function_name(op.kind)
    lines = [f"reduce_lanes<1, 32>({name}, {function});"]
    if op.warps > 1:
        if op.scratch is None:
            raise CodegenError("merge_threads: there is no scratch")
        e.use("warp")
        at, sync = e.text(op.scratch), sync_text(e, op.barrier)
        lines += [sync] if op.guarded else []
        lines.append(f"put_partials<{op.warps}, 1>({at}, {name}, warp, 0);")
        lines.append(sync)
        every = f"[&](int k) {{ return k; }}, {function}"
        lines.append(f"reduce_partials<{op.warps}, {op.warps}, 1>({at}, {name}, 0, {every});")
    return MergeThreadsContext(
        f"float {name}[1] = {{{e.text(op.value)}}};",
        "\n".join(lines),
        f"{e.assignment(op.result, op.kind)} = {name}[0];",
    )


@dataclass(frozen=True)
class MergeContext:
    """An exchange of maxima and sums: declarations, the call, and what becomes of scalars."""

    declarations: str
    call: str
    results: str


@emits("reduce.merge_exponentials")
def merge_exponentials(op: ops.MergeExponentials, e: Emission) -> MergeContext:
    """`merge_exponentials<4, 16, 256>(scratch_1, arrived_1, turn_1, x_1, .., warp);`."""
    if op.scratch is None or op.barriers is None or op.cursor is None:
        raise CodegenError("merge_exponentials: there is no scratch or no mbarrier")
    e.use("warp", "lane")
    lines, given, results = list[str](), list[str](), list[str]()
    for value in (op.largest, op.total):
        if isinstance(value.type, TileType):
            given.append(e.text(value))
            continue
        given.append(e.names.fresh("own"))
        lines.append(f"const float {given[-1]}[1] = {{{e.text(value)}}};")
    for result, name in zip(op.results, ("largest", "total", "factor"), strict=True):
        if isinstance(result.type, TileType):
            given.append(e.name(result, name))
        else:
            given.append(e.names.fresh(name))
            results.append(f"{e.assignment(result, name)} = {given[-1]}[0];")
            lines.append(f"float {given[-1]}[1];")
    form = f"{op.num_ctas}, {op.warps // op.num_ctas}, {op.scratch_bytes() // 2}"
    places = [e.text(v) for v in (op.scratch, op.barriers, op.cursor)]
    arguments = ", ".join([*places, *given, e.place.own_warp])
    return MergeContext(
        "\n".join(lines), f"merge_exponentials<{form}>({arguments});", "\n".join(results)
    )
