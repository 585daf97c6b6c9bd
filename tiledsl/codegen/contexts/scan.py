"""Scans: one statement per digit of the axis."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import bind_arguments
from tiledsl.codegen.combining import combine_lambda
from tiledsl.codegen.combining import element_text
from tiledsl.codegen.combining import function_name
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
from tiledsl.ir.axis_plan import ScanLevel
from tiledsl.ir.axis_plan import scan_levels
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.ops import control
from tiledsl.ir.ops import scan as ops
from tiledsl.ir.ops.tile import tile_type


@dataclass(frozen=True)
class ScanContext:
    """One scan.

    before: the combine function, or "". declaration: of the elements, or "". part: their name;
    element: of register `i`. scan: the object that goes through the levels; reverse: true or false.
    results: statements that move elements into the results.
    """

    before: str
    declaration: str
    part: str
    element: str
    scan: str
    reverse: str
    type: str
    count: int
    levels: str
    results: str


@dataclass(frozen=True)
class ReturnContext:
    """The end of a combine function."""

    copies: str


@enters("scan.scan")
def enter_scan(op: ops.Scan, e: Emission) -> None:
    """Names the arguments of the combine function."""
    if not op.kind:
        bind_arguments(e, op, op.body, len(op.inputs))


@yields_to("scan.scan")
def yield_scan(op: control.Yield, e: Emission) -> ReturnContext:
    """`return t_1;`."""
    return ReturnContext(return_statement(e, op))


@emits("scan.scan")
def scan(op: ops.Scan, e: Emission, body: str) -> ScanContext | None:
    """`Scan<false, float, 8> scan_1(x_1);`, then its levels."""
    if not any(e.users(r) for r in op.results):
        return None
    type_ = tile_type(op.inputs[0], "scan")
    dtypes = [tile_type(v, "scan").dtype for v in op.inputs]
    layout, part = e.layout(type_), part_type(dtypes)
    before = ""
    if op.kind:
        function = function_name(op.kind)
    else:
        function = e.names.fresh("combine")
        before = combine_lambda(e, op, function, part, body)
    element = element_text(e, op.inputs, dtypes, "i")
    lifted = False
    if op.masks:
        thread = thread_coordinate(e, layout, op.axis, "along")
        inside = f"{add(thread, register_part(layout, op.axis))} < {type_.shape[op.axis]}"
        rest = neutral(op.kind, dtypes)
        lifted = not rest
        element = f"maybe({inside}, {element})" if lifted else f"{inside} ? {element} : {rest}"
    if lifted:
        part, function = f"Maybe<{part}>", f"lift({function})"
    is_direct = len(dtypes) == 1 and not is_packed(dtypes[0]) and not lifted
    name = e.name(op.results[0], "x") if is_direct else e.names.fresh("part")
    declaration = "" if is_direct else f"{part} {name}[{layout.num_regs}];"
    moved = "" if is_direct else result_statements(e, op.results, name, "value" if lifted else "")
    scan_name = e.names.fresh("scan")
    return ScanContext(
        before,
        declaration,
        name,
        element,
        scan_name,
        "true" if op.reverse else "false",
        part,
        layout.num_regs,
        _levels(op, e, layout, scan_name, function),
        moved,
    )


def _levels(op: ops.Scan, e: Emission, layout: Layout, name: str, function: str) -> str:
    lines: list[str] = []
    exchanges = 0
    for level in scan_levels(layout, op.axis):
        digits = ", ".join(f"{s}, {n}" for s, n in level.lower)
        below = f"Below<{digits}>()"
        place = f"{level.stride}, {level.size}"
        if level.unit is Unit.REG:
            lines.append(f"{name}.registers<{place}>({below}, {function});")
        elif level.unit is Unit.LANE:
            lines.append(f"{name}.lanes<{place}>({below}, {function});")
        else:
            guard = op.guarded or exchanges > 0
            lines += _between_warps(op, e, layout, level, name, function, below, guard=guard)
            exchanges += 1
    return "\n".join(lines)


def _between_warps(
    op: ops.Scan,
    e: Emission,
    layout: Layout,
    level: ScanLevel,
    name: str,
    function: str,
    below: str,
    *,
    guard: bool,
) -> list[str]:
    if op.scratch is None:
        raise CodegenError("scan: the axis lies in several warps, but there is no scratch")
    e.use("warp")
    at, sync = e.text(op.scratch), sync_text(e, op.barrier)
    sizes = f"{layout.num_warps}, {level.blocks(layout.num_regs)}"
    return [
        *([sync] if guard else []),
        f"{name}.put_totals<{sizes}>({below}, {at}, warp);",
        sync,
        f"{name}.warps<{level.stride}, {level.size}, {sizes}>({below}, {at}, warp, {function});",
    ]
