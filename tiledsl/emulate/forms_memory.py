"""PTX forms of generic accesses: loads, stores, matrices of a warp, atomic operations."""

from __future__ import annotations

import re
from typing import Final

from tiledsl.emulate.forms import BITS
from tiledsl.emulate.forms import form
from tiledsl.emulate.forms import members


@form(r"(ld|st)\.(?:weak\.|volatile\.)?shared(?:::(cta|cluster))?(?:\.v(2|4))?\.[buf](8|16|32|64)")
def _shared(match: re.Match[str], o: list[str]) -> str:
    kind, count = BITS[match[4]], int(match[3] or 1)
    is_cluster = "true" if match[2] == "cluster" else "false"
    if match[1] == "ld":
        names = members(o[0])
        moves = " ".join(f"::emu::put({name}, v[{i}]);" for i, name in enumerate(names))
        return f"{kind} v[{count}]; ::emu::load(v, {o[1]}, sizeof v, {is_cluster}); {moves}"
    values = ", ".join(f"::emu::raw<{kind}>({name})" for name in members(o[1]))
    return (
        f"const {kind} v[{count}] = {{{values}}}; ::emu::store({o[0]}, v, sizeof v, {is_cluster});"
    )


@form(
    r"(ld|st)\.(?:weak\.|volatile\.)?global(?:\.nc)?(?:\.c[agsv]|\.w[bt]|\.L1::\w+)?(?:\.v(2|4))?\.[buf](8|16|32|64)"
)
def _global(match: re.Match[str], o: list[str]) -> str:
    kind, count = BITS[match[3]], int(match[2] or 1)
    size = f"{count} * sizeof({kind})"
    if match[1] == "ld":
        moves = " ".join(f"::emu::put({name}, v[{i}]);" for i, name in enumerate(members(o[0])))
        return f"const {kind}* v = ::emu::global<const {kind}>({o[1]}, {size}); {moves}"
    names = enumerate(members(o[1]))
    moves = " ".join(f"v[{i}] = ::emu::raw<{kind}>({name});" for i, name in names)
    return f"{kind}* v = ::emu::global<{kind}>({o[0]}, {size}); {moves}"


@form(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x(1|2|4)(\.trans)?\.shared\.b16")
def _matrix(match: re.Match[str], o: list[str]) -> str:
    count, is_transposed = match[2], "true" if match[3] else "false"
    if match[1] == "ld":
        registers = ", ".join(f"&{name}" for name in members(o[0]))
        call = f"::emu::load_matrix({o[1]}, v, {count}, {is_transposed});"
        return f"unsigned* const v[{count}] = {{{registers}}}; {call}"
    registers = ", ".join(members(o[1]))
    call = f"::emu::store_matrix({o[0]}, v, {count}, {is_transposed});"
    return f"const unsigned v[{count}] = {{{registers}}}; {call}"


@form(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.(f32|f16)\.(bf16|f16)\.(?:bf16|f16)\.(?:f32|f16)")
def _warp_mma(match: re.Match[str], o: list[str]) -> str:
    sums, rows, cols = (members(text) for text in o[:3])
    count, dtype = len(sums), match[2]
    kind = "float" if match[1] == "f32" else "unsigned"
    moves = " ".join(f"{name} = d[{i}];" for i, name in enumerate(sums))
    return (
        f"{kind} d[{count}] = {{{', '.join(members(o[3]))}}}; "
        f"const unsigned a[4] = {{{', '.join(rows)}}}, b[2] = {{{', '.join(cols)}}}; "
        f"::emu::warp_mma(d, a, b, {'true' if dtype == 'bf16' else 'false'}); {moves}"
    )


_ATOMIC_TYPES: Final = {
    "u32": "unsigned", "b32": "unsigned", "s32": "int", "u64": "unsigned long long",
    "b64": "unsigned long long", "s64": "long long", "f32": "float", "f64": "double",
    "b16": "unsigned short", "f16": "f16", "bf16": "bf16",
}  # fmt: skip


@form(
    r"(atom|red)(?:\.(?:relaxed|acquire|release|acq_rel))?(?:\.(?:cta|cluster|gpu|sys))?"
    r"\.(global|shared|shared::cta|shared::cluster)\.(add|min|max|and|or|xor|exch|cas|inc|dec)(?:\.noftz)?"
    r"\.(u32|b32|s32|u64|b64|s64|f32|f64|b16|f16|bf16)"
)
def _atomic(match: re.Match[str], o: list[str]) -> str:
    result, (address, *values) = ("", o) if match[1] == "red" else (o[0], o[1:])
    kind = _ATOMIC_TYPES[match[4]]
    is_half = kind in ("f16", "bf16")
    size = "2" if is_half else f"sizeof({kind})"
    if match[2] == "global":
        pointer = f"::emu::atomic_global({address}, {size})"
    else:
        is_cluster = "true" if match[2] == "shared::cluster" else "false"
        pointer = f"::emu::atomic_shared({address}, {size}, {is_cluster})"
    if is_half:
        call = f"::emu::atomic_half<::emu::from_{kind}, ::emu::to_{kind}>({pointer}, {values[0]})"
    else:
        name = match[3] + ("_" if match[3] in ("and", "or", "xor") else "")
        arguments = ", ".join(f"::emu::raw<{kind}>({value})" for value in values)
        call = f"::emu::atomic_at<{kind}>(::emu::Atomic::{name}, {pointer}, {arguments})"
    return f"::emu::put({result}, {call});" if result and result != "_" else f"{call};"


@form(
    r"red\.relaxed\.(?:cta|cluster|gpu|sys)\.global\.add(?:\.noftz)?(?:\.v(2|4)\.(f32|f16x2|bf16x2)|()\.(f16x2|bf16x2))"
)
def _atomic_vector(match: re.Match[str], o: list[str]) -> str:
    """The parts of a vector are added one after the other."""
    names, kind = members(o[1]), match[2] or match[4]
    pointer = f"::emu::atomic_global({o[0]}, {4 * len(names)})"
    out = [f"const auto at = (unsigned long long){pointer};"]
    for i, name in enumerate(names):
        if kind == "f32":
            value = f"::emu::raw<float>({name})"
            out.append(
                f"::emu::atomic_at<float>(::emu::Atomic::add, (void*)(at + {4 * i}), {value});"
            )
            continue
        half = kind.removesuffix("x2")
        call = f"::emu::atomic_half<::emu::from_{half}, ::emu::to_{half}>"
        word = f"::emu::raw<unsigned>({name})"
        out.append(f"{call}((void*)(at + {4 * i}), (unsigned short){word});")
        out.append(f"{call}((void*)(at + {4 * i + 2}), (unsigned short)({word} >> 16));")
    return " ".join(out)


@form(
    r"(ld|st)\.(?:relaxed|acquire|release)\.(?:cta|cluster|gpu|sys)\.global(?:\.v(2|4))?\.[busf](8|16|32|64)"
)
def _ordered_global(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::step(); {_global(match, o)}"
