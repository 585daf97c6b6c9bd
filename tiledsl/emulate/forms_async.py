"""PTX forms of asynchronous work: mbarriers, cp.async, TMA and bulk copies, wgmma."""

from __future__ import annotations

import re
from typing import Final

from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.forms import BITS
from tiledsl.emulate.forms import form
from tiledsl.emulate.forms import map_and_coordinates
from tiledsl.emulate.forms import members


# ------------------------------------------------------------------ mbarrier
@form(r"mbarrier\.arrive(\.expect_tx)?(?:\.release\.(?:cta|cluster))?\.shared::(cta|cluster)\.b64")
def _arrive(match: re.Match[str], o: list[str]) -> str:
    is_cluster = "true" if match[2] == "cluster" else "false"
    if match[1]:
        expect = f"::emu::mbarrier_expect_tx({o[1]}, {o[2]}, {is_cluster});"
        return f"{expect} ::emu::mbarrier_arrive({o[1]}, 1, {is_cluster});"
    count = o[2] if len(o) > 2 else "1"
    return f"::emu::mbarrier_arrive({o[1]}, {count}, {is_cluster});"


@form(r"mbarrier\.expect_tx\.relaxed\.(?:cta|cluster)\.shared::(cta|cluster)\.b64")
def _expect_tx(match: re.Match[str], o: list[str]) -> str:
    is_cluster = "true" if match[1] == "cluster" else "false"
    return f"::emu::mbarrier_expect_tx({o[0]}, {o[1]}, {is_cluster});"


@form(
    r"mbarrier\.(try|test)_wait\.parity(?:\.(?:acquire|relaxed)\.(?:cta|cluster))?\.shared::cta\.b64"
)
def _wait(match: re.Match[str], o: list[str]) -> str:
    return f"{o[0]} = ::emu::mbarrier_{match[1]}_wait({o[1]}, {o[2]});"


@form(r"cp\.async\.mbarrier\.arrive(\.noinc)?\.shared(?:::cta)?\.b64")
def _arrive_cp_async(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::mbarrier_arrive_cp_async({o[0]}, {'true' if match[1] else 'false'});"


# ------------------------------------------------------------------ copies of threads
@form(r"cp\.async\.c[ag]\.shared\.global(?:\.L2::\w+)?")
def _cp_async(match: re.Match[str], o: list[str]) -> str:
    source = o[3] if len(o) > 3 else o[2]
    return f"::emu::cp_async({o[0]}, (const void*){o[1]}, {o[2]}, {source});"


@form(r"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v(2|4))?\.[buf](32|64)")
def _store_async(match: re.Match[str], o: list[str]) -> str:
    kind, count = BITS[match[2]], int(match[1] or 1)
    values = ", ".join(f"::emu::raw<{kind}>({name})" for name in members(o[1]))
    return (
        f"const {kind} v[{count}] = {{{values}}}; ::emu::store_async({o[0]}, v, sizeof v, {o[2]});"
    )


# ------------------------------------------------------------------ bulk copies
@form(
    r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?"
    r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?(?:\.L2::cache_hint)?"
)
def _tensor_load(match: re.Match[str], o: list[str]) -> str:
    pointer, at, rank = _coordinates(match, o[1])
    mask, flag = (o[3], "true") if match[2] else ("0", "false")
    call = f"::emu::tensor_load({o[0]}, {pointer}, {o[2]}, {mask}, {flag}, {rank}, at);"
    return f"const int at[] = {{{at}}}; {call}"


@form(
    r"cp\.(reduce\.)?async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(\.add)?(?:\.tile)?\.bulk_group"
    r"(?:\.L2::cache_hint)?"
)
def _tensor_store(match: re.Match[str], o: list[str]) -> str:
    pointer, at, rank = map_and_coordinates(o[0])
    if rank != int(match[2]) or bool(match[1]) != bool(match[3]):
        raise NotEmulated(f"{match[0]} with {rank} coordinates")
    is_add = "true" if match[1] else "false"
    return (
        f"const int at[] = {{{at}}}; ::emu::tensor_store({pointer}, {o[1]}, {rank}, at, {is_add});"
    )


@form(r"cp\.async\.bulk\.prefetch\.tensor\.([1-5])d\.L2\.global(?:\.tile)?")
def _tensor_prefetch(match: re.Match[str], o: list[str]) -> str:
    pointer, at, rank = _coordinates(match, o[0])
    return f"const int at[] = {{{at}}}; ::emu::tensor_prefetch({pointer}, {rank}, at);"


def _coordinates(match: re.Match[str], address: str) -> tuple[str, str, int]:
    pointer, at, rank = map_and_coordinates(address)
    if rank != int(match[1]):
        raise NotEmulated(f"{match[0]} with {rank} coordinates")
    return pointer, at, rank


@form(
    r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)?"
    r"(?:\.L2::cache_hint)?"
)
def _bulk_load(match: re.Match[str], o: list[str]) -> str:
    mask, flag = (o[4], "true") if match[1] else ("0", "false")
    return f"::emu::bulk_load({o[0]}, (const void*){o[1]}, {o[2]}, {o[3]}, {mask}, {flag});"


@form(r"cp\.async\.bulk\.shared::cluster\.shared::cta\.mbarrier::complete_tx::bytes")
def _bulk_push(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::bulk_push({o[0]}, {o[1]}, {o[2]}, {o[3]});"


@form(r"cp\.async\.bulk\.global\.shared::cta\.bulk_group(?:\.L2::cache_hint)?")
def _bulk_store(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::bulk_store((void*){o[0]}, {o[1]}, {o[2]});"


@form(
    r"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group(?:\.L2::cache_hint)?"
    r"\.add\.(?:noftz\.)?(f32|f64|u32|s32|u64|f16|bf16)"
)
def _bulk_add(match: re.Match[str], o: list[str]) -> str:
    kind = {"u32": "u32_", "s32": "i32_", "u64": "u64_"}.get(match[1], match[1])
    return f"::emu::bulk_add((void*){o[0]}, {o[1]}, {o[2]}, ::emu::Type::{kind});"


# ------------------------------------------------------------------ warpgroup matrix multiply
_OPERAND_TYPES: Final = {"u8": "u8_"}
_SIXTEEN_BITS: Final = ("bf16", "f16")


@form(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|f16|s32)\.(bf16|f16|tf32|e4m3|e5m2|s8|u8)"
    r"\.(bf16|f16|tf32|e4m3|e5m2|s8|u8)"
)
def _wgmma(match: re.Match[str], o: list[str]) -> str:
    N, K, acc, a, b = match.groups()
    registers = members(o[0])
    a_in_regs = o[1].startswith("{")
    scales, trans = ["1", "1"], ["0", "0"]
    rest = o[4:]
    if a not in ("s8", "u8"):
        scales, rest = rest[:2], rest[2:]
    if a in _SIXTEEN_BITS:
        trans = ["0", *rest] if a_in_regs else rest
        rest = []
    if len(scales) != 2 or len(trans) != 2 or rest:
        raise NotEmulated(f"{match[0]} with the operands {', '.join(o[1:])}")
    kinds = [f"::emu::Operand::{_OPERAND_TYPES.get(x, x)}" for x in (a, b)]
    flags = [str(a_in_regs).lower(), *("true" if t == "1" else "false" for t in trans)]
    fields = [N, K, f"::emu::Acc::{acc}", *kinds, *flags, *scales]
    d = ", ".join(f"&{name}" for name in registers)
    a_regs = f"const unsigned a[] = {o[1]};" if a_in_regs else "const unsigned* const a = nullptr;"
    a_desc = "0" if a_in_regs else o[1]
    return (
        f"static const ::emu::Multiply form = {{{', '.join(fields)}}}; "
        f"void* const d_regs[] = {{{d}}}; {a_regs} "
        f"::emu::wgmma(&form, d_regs, {len(registers)}, a, {a_desc}, {o[2]}, {o[3]});"
    )
