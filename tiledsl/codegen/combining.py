"""What reductions and scans share in the emitted text: functions, elements, results, barriers."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import term_sum
from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import ScalarType

__all__ = [
    "adds_members",
    "bind_arguments",
    "combine_lambda",
    "element_text",
    "function_name",
    "index_text",
    "neutral",
    "part_type",
    "result_statements",
    "return_statement",
    "sync_text",
]  # fmt: skip

LEAST_BITS = 32
"""Of numbers whose sums are those of their own dtype."""

_FUNCTIONS = {
    "sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "xor": "BitXor", "or": "BitOr",
    "and": "BitAnd", "argmax": "ArgMax", "argmin": "ArgMin",
}  # fmt: skip


def part_type(dtypes: Sequence[DType]) -> str:
    """C++ type of one element of the operands: `float`, or `Tuple<float, int>`."""
    if len(dtypes) == 1:
        return scalar_type(dtypes[0])
    return f"Tuple<{', '.join(scalar_type(d) for d in dtypes)}>"


def function_name(kind: str) -> str:
    """The device function of a named combination."""
    return f"{_FUNCTIONS[kind]}()"


def element_text(e: Emission, values: Sequence[Value], dtypes: Sequence[DType], index: str) -> str:
    """Element `index` of the operands as a value of `part_type`."""
    items: list[str] = []
    for v in values:
        dtype = tile_type(v, "combine").dtype
        items.append(f"{e.text(v)}.get({index})" if is_packed(dtype) else f"{e.text(v)}[{index}]")
    if len(items) == 1:
        return items[0]
    types = ", ".join(scalar_type(d) for d in dtypes)
    return f"tuple<{types}>({', '.join(items)})"


def neutral(kind: str, dtypes: Sequence[DType]) -> str:
    """What changes nothing when it is combined; empty where there is no such element."""
    if not kind:
        return ""
    if kind.startswith("arg"):
        worst = literal(float("nan"), dtypes[0]) if dtypes[0].is_float else _worst(kind, dtypes[0])
        return f"{part_type(dtypes)}{{{worst}, {{{literal(2**31 - 1, int32)}}}}}"
    dtype = dtypes[0]
    match kind:
        case "sum":
            number: float = -0.0 if dtype.is_float else 0
        case "prod":
            number = 1
        case "max" | "min" if dtype.is_float:
            number = float("nan")
        case "max" | "min":
            return _worst(kind, dtype)
        case "and":
            number = True if dtype.kind == "bool" else (1 << dtype.bits) - 1
        case _:
            number = False if dtype.kind == "bool" else 0
    return literal(number, dtype)


def _worst(kind: str, dtype: DType) -> str:
    """The integer that every other one beats."""
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    high = (1 << (dtype.bits - 1 if dtype.is_signed else dtype.bits)) - 1
    return literal(low if kind.endswith("max") else high, dtype)


# ---------------------------------------------------------------------- combine functions
def bind_arguments(e: Emission, op: Op, body: Region, count: int) -> None:
    """Names the two arguments of a combine function; the region's arguments are their parts."""
    names = (e.names.fresh("a"), e.names.fresh("b"))
    e.notes[op] = names
    for i, arg in enumerate(body.args):
        name = names[i // count]
        e.bind(arg, name if count == 1 else f"{name}.get<{i % count}>()")


def adds_members(body: Region) -> bool:
    """Whether a combine function adds each member of its first argument to that of the second.

    Narrow floats are not asked for: their sums would be rounded each.
    """
    end = body.terminator
    if not isinstance(end, Yield) or len(body.ops) != 1 + len(end.values):
        return False
    count = len(end.values)
    for a, b, value in zip(body.args[:count], body.args[count:], end.values, strict=True):
        op = value.defining_op
        if not isinstance(op, Add) or (op.a, op.b) != (a, b):
            return False
        if not isinstance(a.type, ScalarType) or a.type.dtype.bits < LEAST_BITS:
            return False
    return True


def return_statement(e: Emission, op: Yield) -> str:
    """The end of a combine function."""
    texts = [e.text(v) for v in op.values]
    if len(texts) == 1:
        return f"return {texts[0]};"
    types = ", ".join(scalar_type(v.type.dtype) for v in op.values)  # type: ignore[attr-defined]
    return f"return tuple<{types}>({', '.join(texts)});"


def combine_lambda(e: Emission, op: Op, name: str, type_: str, body: str) -> str:
    """`auto combine_1 = [&](float a_1, float b_1) -> float { ... };` over the text of the body."""
    first, second = e.notes[op]
    head = f"auto {name} = [&]({type_} {first}, {type_} {second}) -> {type_} {{"
    return f"{head}\n{body}\n}};"


# ---------------------------------------------------------------------- results
def result_statements(e: Emission, results: Sequence[Value], name: str, member: str) -> str:
    """Moves elements out of an array of values of `part_type` into the results."""
    lines: list[str] = []
    for n, result in enumerate(results):
        if e.users(result):
            path = f".{member}" if member else ""
            path += f".get<{n}>()" if len(results) > 1 else ""
            lines.append(_result(e, result, name, path))
    return "\n".join(lines)


def _result(e: Emission, result: Value, name: str, path: str) -> str:
    if isinstance(result.type, ScalarType):
        dtype = result.type.dtype
        text = f"{name}[0]{path}"
        if dtype.is_float and dtype.bits < 32:
            text = f"round_to<{memory_type(dtype)}>({text})"
        return f"{e.assignment(result, 't')} = {text};"
    return f"put_all({e.name(result, 'x')}, [&](int i) {{ return {name}[i]{path}; }});"


# ---------------------------------------------------------------------- threads
def sync_text(e: Emission, barrier: int) -> str:
    """A barrier of the threads that run one instance of the role, in all CTAs that share it.

    barrier: first of the role's named barriers, 0 where the role is the whole CTA.
    """
    place = e.place
    if place.num_ctas > 1:
        return "cluster_sync();"
    threads = min(32 * place.num_warps, e.num_threads)
    if threads == 32:
        return "warp_sync();"
    if threads == e.num_threads:
        return "block_sync();"
    if place.groups == place.num_warpgroups:
        return f"named_barrier_sync({barrier}, {threads});"
    instance = e.group_index if place.groups == 1 else f"{e.group_index} / {place.groups}"
    return f"named_barrier_sync({barrier} + {instance}, {threads});"


def index_text(variable: str, terms: Sequence[tuple[int, int, int]], count: int) -> str:
    """A sum of terms as an atomic expression."""
    text = term_sum(variable, terms, count)
    return f"({text})" if " " in text else text or "0"
