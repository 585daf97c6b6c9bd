"""Prints of kernels: a printf per element, by the first of the threads that hold it."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.contexts.pointer import first_copy
from tiledsl.codegen.contexts.pointer import first_thread
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import element
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.registry import emits
from tiledsl.codegen.watch import assert_number
from tiledsl.codegen.watch import vote_address
from tiledsl.dtypes import DType
from tiledsl.ir.op import Value
from tiledsl.ir.ops import debug as ops
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class PrintContext:
    """Statements that print."""

    body: str


@emits("debug.print")
def print_(op: ops.Print, e: Emission) -> PrintContext:
    """One thread prints: `if (warp == 0 && lane == 0) printf("pid (%d, %d, %d) n: %d", ...);`."""
    lines: list[str] = []
    if not op.values:
        lines.append(f"if ({first_thread(e)}) {_call(op.prefix, '', '', '', None)}")
    for number, value in enumerate(op.values):
        label = op.prefix if len(op.values) == 1 else f"{op.prefix}(operand {number}) "
        lines.append(_print(value, label, e, hex_=op.hex))
    return PrintContext("\n".join(lines))


@dataclass(frozen=True)
class AssertContext:
    """holds: what makes `value` of a tile; vote: address of a flag of the block.

    A block of a cluster goes on: others may read its shared memory.
    """

    holds: str
    value: str
    vote: str
    site: str
    variant: str


@emits("debug.assert")
def assert_(op: ops.Assert, e: Emission) -> AssertContext:
    """`if (!all_hold(holds_1, watched + 128, 3)) return;`: if some element fails, it ends."""
    site, vote = assert_number(op, op.message, e), vote_address()
    variant = "cluster" if e.cluster_size > 1 else ""
    value = op.condition
    if not isinstance(value.type, TileType):
        return AssertContext("", e.text(value), vote, site, variant)
    layout = e.layout(value.type)
    name = e.names.fresh("holds")
    places: list[str] = []
    for dim, extent in enumerate(value.type.shape):
        if layout.padded_shape[dim] > extent:
            thread = thread_coordinate(e, layout, dim, dim_name(dim, layout.rank))
            places.append(f"{add(thread, register_part(layout, dim))} >= {extent}")
    condition = " || ".join([*places, element(e, value, "i")])
    loop = f"for (int i = 0; i < {layout.num_regs}; ++i) {name} = {name} && ({condition});"
    holds = f"bool {name} = true;\n#pragma unroll\n{loop}"
    return AssertContext(holds, name, vote, site, variant)


def _print(value: Value, label: str, e: Emission, *, hex_: bool) -> str:
    dtype = element_dtype(value, "device_print")
    form, cast = _format(dtype, hex_=hex_)
    if not isinstance(value.type, TileType):
        return f"if ({first_thread(e)}) {_call(label, form, '', f'({cast}){e.atom(value)}', ())}"
    layout = e.layout(value.type)
    conditions = [first_copy(e, layout)]
    places: list[str] = []
    for dim, extent in enumerate(value.type.shape):
        thread = thread_coordinate(e, layout, dim, dim_name(dim, layout.rank))
        places.append(add(thread, register_part(layout, dim)))
        if layout.padded_shape[dim] > extent:
            conditions.append(f"{places[-1]} < {extent}")
    text = f"({cast}){element(e, value, 'i')}"
    call = _call(label, form, ", ".join(places), text, value.type.shape)
    return (
        f"#pragma unroll 1\nfor (int i = 0; i < {layout.num_regs}; ++i) {{\n"
        + indent(f"if ({' && '.join(conditions)}) {call}")
        + "\n}"
    )


def _call(label: str, form: str, places: str, text: str, shape: tuple[int, ...] | None) -> str:
    """shape: of the operand, whose indices are as wide as the last one; None without an operand."""
    clean = label.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    widths = ", ".join(f"%{len(str(n - 1))}d" for n in shape or ())
    index = "" if shape is None else f" idx ({widths})"
    arguments = ", ".join(
        x for x in ("(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z", places, text) if x
    )
    return f'printf("pid (%d, %d, %d){index}{clean}{form}\\n", {arguments});'


def _format(dtype: DType, *, hex_: bool) -> tuple[str, str]:
    """The printf conversion and the C++ type that is passed."""
    if dtype.is_float:
        return "%f", "double"
    if dtype.is_pointer or (hex_ and dtype.bits == 64):
        return "0x%016llx", "u64"
    if hex_:
        return f"0x%0{2 * dtype.bytes}x", f"u{8 * dtype.bytes}"
    if dtype.bits == 64:
        return ("%lld", "i64") if dtype.is_signed else ("%llu", "u64")
    return ("%d", "int") if dtype.is_signed or dtype.kind == "bool" else ("%u", "u32")
