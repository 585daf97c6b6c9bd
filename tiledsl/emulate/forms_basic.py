"""PTX forms of numbers, fences, barriers and special registers."""

from __future__ import annotations

import re
from typing import Final

from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.forms import BITS
from tiledsl.emulate.forms import form
from tiledsl.emulate.forms import members
from tiledsl.emulate.forms import operand

_ASSIGN: Final = {
    "cvt.rn.bf16x2.f32": "{0} = ::emu::pair16(::emu::to_bf16({2}), ::emu::to_bf16({1}));",
    "cvt.rn.f16x2.f32": "{0} = ::emu::pair16(::emu::to_f16({2}), ::emu::to_f16({1}));",
    "cvt.rn.satfinite.e4m3x2.f32": "{0} = ::emu::pair8(::emu::to_e4m3({2}), ::emu::to_e4m3({1}));",
    "cvt.rn.satfinite.e5m2x2.f32": "{0} = ::emu::pair8(::emu::to_e5m2({2}), ::emu::to_e5m2({1}));",
    "fma.rn.bf16x2": "{0} = ::emu::fma_pairs({1}, {2}, {3}, ::emu::from_bf16, ::emu::to_bf16);",
    "fma.rn.f16x2": "{0} = ::emu::fma_pairs({1}, {2}, {3}, ::emu::from_f16, ::emu::to_f16);",
    "cvt.rn.bf16.f32": "{0} = ::emu::to_bf16({1});",
    "cvt.rn.f16.f32": "{0} = ::emu::to_f16({1});",
    "cvt.f32.f16": "{0} = ::emu::from_f16({1});",
    "cvt.f32.bf16": "{0} = ::emu::from_bf16({1});",
    "cvt.rn.f16x2.e4m3x2": "{0} = ::emu::pair16(::emu::to_f16(::emu::from_e4m3({1})), "
    "::emu::to_f16(::emu::from_e4m3({1} >> 8)));",
    "cvt.rn.f16x2.e5m2x2": "{0} = ::emu::pair16(::emu::to_f16(::emu::from_e5m2({1})), "
    "::emu::to_f16(::emu::from_e5m2({1} >> 8)));",
    **{
        f"{name}.rn.{kind}x2": f"{{0}} = ::emu::pair16(::emu::to_{kind}(::emu::from_{kind}({{1}}) "
        f"{sign} ::emu::from_{kind}({{2}})), ::emu::to_{kind}(::emu::from_{kind}({{1}} >> 16) "
        f"{sign} ::emu::from_{kind}({{2}} >> 16)));"
        for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))
        for kind in ("f16", "bf16")
    },
    "ex2.approx.ftz.f32": "{0} = ::emu::ftz(exp2f(::emu::ftz({1})));",
    "lg2.approx.ftz.f32": "{0} = log2f(::emu::ftz({1}));",
    "rcp.approx.ftz.f32": "{0} = ::emu::ftz(1.0f / ::emu::ftz({1}));",
    "rsqrt.approx.ftz.f32": "{0} = 1.0f / sqrtf(::emu::ftz({1}));",
    "div.full.f32": "{0} = {1} / {2};",
    "tanh.approx.f32": "{0} = tanhf({1});",
    "cvt.rna.tf32.f32": "::emu::put({0}, ::emu::to_tf32(::emu::bits_as<float>({1})));",
    "max.NaN.f32": "{0} = ::emu::max_nan({1}, {2});",
    "min.NaN.f32": "{0} = ::emu::min_nan({1}, {2});",
    "max.s32": "{0} = max((int){1}, (int){2});",
    "min.s32": "{0} = min((int){1}, (int){2});",
    "max.bf16x2": "{0} = ::emu::of_pairs({1}, {2}, ::emu::from_bf16, true);",
    "min.bf16x2": "{0} = ::emu::of_pairs({1}, {2}, ::emu::from_bf16, false);",
    "max.f16x2": "{0} = ::emu::of_pairs({1}, {2}, ::emu::from_f16, true);",
    "min.f16x2": "{0} = ::emu::of_pairs({1}, {2}, ::emu::from_f16, false);",
    "set.gt.f32.f32": "{0} = {1} > {2} ? 1.0f : 0.0f;",
    "set.ge.f32.f32": "{0} = {1} >= {2} ? 1.0f : 0.0f;",
    "set.lt.f32.f32": "{0} = {1} < {2} ? 1.0f : 0.0f;",
    "set.le.f32.f32": "{0} = {1} <= {2} ? 1.0f : 0.0f;",
    "max.f32": "{0} = fmaxf({1}, {2});",
    "min.f32": "{0} = fminf({1}, {2});",
    "mul.wide.s32": "{0} = (long long)(int){1} * (int){2};",
    "fma.rn.f32": "{0} = __builtin_fmaf({1}, {2}, {3});",
    "setp.ne.b32": "{0} = {1} != {2};",
    "setp.eq.u32": "{0} = {1} == {2};",
    "setp.gt.f32": "{0} = {1} > {2};",
    "selp.u32": "{0} = {3} ? {1} : {2};",
    "mapa.shared::cluster.u32": "{0} = ::emu::mapa({1}, {2});",
}
_CALLS: Final = {
    "wgmma.fence.sync.aligned": "wgmma_fence()",
    "wgmma.commit_group.sync.aligned": "wgmma_commit()",
    "wgmma.wait_group.sync.aligned": "wgmma_wait({0})",
    "mbarrier.init.shared::cta.b64": "mbarrier_init({0}, {1})",
    "mbarrier.inval.shared::cta.b64": "mbarrier_inval({0})",
    "fence.mbarrier_init.release.cluster": "mbarrier_init_fence()",
    "bar.sync": "named_sync({0}, {1})",
    "bar.arrive": "named_arrive({0}, {1})",
    "bar.warp.sync": "warp_sync({0})",
    "barrier.cluster.arrive.release": "cluster_arrive()",
    "barrier.cluster.arrive.release.aligned": "cluster_arrive()",
    "barrier.cluster.arrive.relaxed.aligned": "cluster_arrive()",
    "barrier.cluster.wait.acquire": "cluster_wait()",
    "barrier.cluster.wait.acquire.aligned": "cluster_wait()",
    "cp.async.bulk.commit_group": "bulk_commit()",
    "cp.async.bulk.wait_group": "bulk_wait({0}, false)",
    "cp.async.bulk.wait_group.read": "bulk_wait({0}, true)",
    "cp.async.commit_group": "cp_async_commit()",
    "cp.async.wait_group": "cp_async_wait({0})",
    "cp.async.wait_all": "cp_async_wait(0)",
    "fence.acq_rel.cta": "fence()",
    "fence.acq_rel.cluster": "fence()",
    "fence.acq_rel.gpu": "fence()",
    "fence.acq_rel.sys": "fence()",
}


@form("|".join(re.escape(name) for name in _ASSIGN))
def _assign(match: re.Match[str], o: list[str]) -> str:
    return _ASSIGN[match[0]].format(*o)


@form("|".join(re.escape(name) for name in _CALLS))
def _call(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::{_CALLS[match[0]].format(*o)};"


@form(
    r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32|prefetch\.(tensormap|global\.L2)|griddepcontrol\.\w+"
)
@form(
    r"fence\.proxy\.tensormap::generic\.\w+\.gpu|cp\.async\.bulk\.prefetch\.L2\.global|fence\.proxy\.async\.global"
)
def _nothing(match: re.Match[str], o: list[str]) -> str:
    return ";"


@form(r"fence\.proxy\.async(\.shared::(cta|cluster))?")
def _fence_async(match: re.Match[str], o: list[str]) -> str:
    return "::emu::fence_async();"


@form(r"createpolicy\.fractional\.L2::evict_(first|last|normal|unchanged)\.b64")
def _policy(match: re.Match[str], o: list[str]) -> str:
    return f"{o[0]} = 0;"


def _part(whole: str, count: int) -> tuple[str, int]:
    """C++ type and bits of the parts that a register of a type is taken apart into."""
    bits = int(whole[1:]) // count
    if str(bits) not in BITS or bits * count != int(whole[1:]):
        raise NotEmulated(f"mov.{whole} of {count} parts")
    return BITS[str(bits)], bits


_INTEGERS: Final = {
    **{f"u{bits}": name for bits, name in BITS.items()},
    "s8": "signed char", "s16": "short", "s32": "int", "s64": "long long",
}  # fmt: skip


@form(r"cvt\.([us](?:8|16|32|64))\.([us](?:8|16|32|64))")
def _cvt_integer(match: re.Match[str], o: list[str]) -> str:
    return f"{o[0]} = ({_INTEGERS[match[1]]})({_INTEGERS[match[2]]}){o[1]};"


@form(r"cvt\.rn\.(f32|f64)\.([us](?:8|16|32|64))")
def _cvt_to_float(match: re.Match[str], o: list[str]) -> str:
    kind = "float" if match[1] == "f32" else "double"
    return f"{o[0]} = ({kind})({_INTEGERS[match[2]]}){o[1]};"


@form(r"(add|sub|and|or|xor|not|shl|shr|min|max|mul\.lo|mad\.lo)\.([bus])(16|32|64)")
def _integer_math(match: re.Match[str], o: list[str]) -> str:
    """Registers of 16, 32 and 64 bits. Ref: PTX ISA, integer and logic instructions."""
    name, bits = match[1], int(match[3])
    kind = _INTEGERS[f"{'s' if match[2] == 's' else 'u'}{bits}"]
    wide = _INTEGERS[f"u{bits}"]
    a, b = (f"({kind}){x}" for x in (o[1], o[2] if len(o) > 2 else "0"))
    signs = {"add": "+", "sub": "-", "and": "&", "or": "|", "xor": "^", "mul.lo": "*"}
    if name in signs:
        made = f"({wide})(({wide}){a} {signs[name]} ({wide}){b})"
    elif name == "mad.lo":
        made = f"({wide})(({wide}){a} * ({wide}){b} + ({wide}){o[3]})"
    elif name == "not":
        made = f"({wide})~({wide}){a}"
    elif name in ("min", "max"):
        made = f"(({a}) {'<' if name == 'min' else '>'} ({b}) ? ({a}) : ({b}))"
    else:  # counts beyond the width leave nothing, or the sign
        over = "0" if name == "shl" else f"({kind})(({a}) < 0 ? -1 : 0)"
        sign = "<<" if name == "shl" else ">>"
        made = f"((unsigned){o[2]} < {bits}u ? ({kind})(({a}) {sign} (unsigned){o[2]}) : {over})"
    return f"::emu::put({o[0]}, ({wide}){made});"


@form(r"mov\.(u16|b16|u32|b32|u64|b64|s32|s64|f32|f64)")
def _mov(match: re.Match[str], o: list[str]) -> str:
    special = {
        "%%cluster_ctarank": "::emu::cluster_rank()",
        "%%cluster_nctarank": "::emu::cluster_size()",
        "%%clock64": "::emu::clock()",
        "%%globaltimer": "::emu::global_timer()",
        "%%smid": "0",
    }
    if o[0].startswith("{"):
        parts = members(o[0])
        kind, bits = _part(match[1], len(parts))
        moves = (f"{name} = ({kind})(all >> {i * bits});" for i, name in enumerate(parts))
        return f"const auto all = {o[1]}; {' '.join(moves)}"
    if o[1].startswith("{"):
        parts = members(o[1])
        kind, bits = _part(match[1], len(parts))
        whole = BITS[match[1][1:]]
        joined = (f"({whole})({kind}){name} << {i * bits}" for i, name in enumerate(parts))
        return f"{o[0]} = {' | '.join(joined)};"
    return f"{o[0]} = {special.get(o[1], o[1])};"


@form(r"elect\.sync")
def _elect(match: re.Match[str], o: list[str]) -> str:
    predicate = o[0].partition("|")[2]
    return f"{operand(predicate)} = ::emu::elect({o[1]}u);"
