"""PTX statements to calls of the emulated machine, one function per instruction family.

The device headers and the generated functions stay as they are: their inline PTX is what gets translated, so that its
operand order, types and modifiers are checked too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tiledsl.emulate.asm import AsmOperand
from tiledsl.emulate.asm import AsmStatement
from tiledsl.emulate.asm import Instruction
from tiledsl.emulate.asm import instructions
from tiledsl.emulate.asm import statements
from tiledsl.emulate.errors import NotEmulated

__all__ = ["translate", "translate_statement"]

Translate = Callable[[re.Match[str], list[str]], str]

_FORMS: list[tuple[re.Pattern[str], Translate]] = []
_REGISTERS: Final = {"r": "unsigned", "l": "unsigned long long", "h": "unsigned short", "f": "float", "d": "double"}
_DECLARED: Final = {"pred": "bool", "b16": "unsigned short", "b32": "unsigned", "u32": "unsigned", "f32": "float"}
_DECLARED_64: Final = {"b64": "unsigned long long", "u64": "unsigned long long"}
_BITS: Final = {"8": "unsigned char", "16": "unsigned short", "32": "unsigned", "64": "unsigned long long"}
_EXTERN_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?([\w:]+)\s+(\w+)\s*\[\s*\]\s*;")


def translate(text: str, *, is_lenient: bool = False) -> str:
    """CUDA text as C++ of the emulated machine; every line keeps its number.

    is_lenient: what has no emulation is reported when it is executed.

    Raises:
        NotEmulated: an instruction without an emulation.
    """
    out: list[str] = []
    last = 0
    for statement in statements(text):
        original = text[statement.start : statement.end]
        try:
            made = translate_statement(statement)
        except NotEmulated as error:
            if not is_lenient:
                raise
            made = f'::emu::fault("not emulated: {error.message}")'
        out += [text[last : statement.start], made, "\n" * original.count("\n")]
        last = statement.end
    out.append(text[last:])
    return _EXTERN_SHARED.sub(r"\1* const \2 = (\1*)::emu::dynamic_shared();", "".join(out))


def translate_statement(statement: AsmStatement) -> str:
    """One inline PTX statement as a C++ statement without its semicolon."""
    lines = [_instruction(found) for found in instructions(statement.ptx)]
    if not any(lines):
        return "do {} while (0)"
    declared = [_declare(i, operand) for i, operand in enumerate(statement.operands)]
    return "do { " + " ".join([*declared, *lines]) + " } while (0)"


def form(pattern: str) -> Callable[[Translate], Translate]:
    """Registers the translation of the opcodes that match a pattern entirely."""

    def register(function: Translate) -> Translate:
        _FORMS.append((re.compile(pattern), function))
        return function

    return register


def _declare(index: int, operand: AsmOperand) -> str:
    if operand.is_output:
        return f"auto& ptx_{index} = {operand.expression};"
    if operand.constraint == "n":
        return f"constexpr auto ptx_{index} = {operand.expression};"
    kind = _REGISTERS.get(operand.constraint)
    if kind is None:
        raise NotEmulated(f"inline PTX with the constraint {operand.constraint!r}")
    return f"const {kind} ptx_{index} = ({kind})({operand.expression});"


def _instruction(found: Instruction) -> str:
    if found.opcode == ".reg":
        return _registers(found)
    for pattern, function in _FORMS:
        if match := pattern.fullmatch(found.opcode):
            text = function(match, [_operand(o) for o in found.operands])
            return f"if ({_predicate(found.predicate)}) {{ {text} }}" if found.predicate else f"{{ {text} }}"
    raise NotEmulated(f"the PTX instruction {found.opcode}")


def _registers(found: Instruction) -> str:
    kind, *first = found.operands[0].split()
    names = [f"reg_{name}" for name in [*first, *found.operands[1:]]]
    declared = {**_DECLARED, **_DECLARED_64}[kind.lstrip(".")]
    return f"[[maybe_unused]] {declared} {', '.join(names)};"


def _predicate(text: str) -> str:
    return f"!{_operand(text[1:])}" if text.startswith("!") else _operand(text)


def _operand(text: str) -> str:
    """`%3` -> ptx_3, `p` -> reg_p, `[%0]` -> ptx_0; lists stay in braces; literals stay."""
    text = text.strip()
    if text.startswith("["):
        return _operand(text[1:-1]) if "," not in text else text[1:-1]
    if text.startswith("{"):
        return "{" + ", ".join(_operand(part) for part in text[1:-1].split(",")) + "}"
    if text.startswith("%%"):
        return text
    if text.startswith("%"):
        return f"ptx_{text[1:]}"
    if re.fullmatch(r"[A-Za-z]\w*", text):
        return f"reg_{text}"
    return text


def _names(group: str) -> list[str]:
    """The members of a list operand, or the operand itself."""
    return [part.strip() for part in group.strip("{}").split(",")]


def _map_and_coordinates(address: str) -> tuple[str, str, int]:
    """`%1, {%3, %4}` -> (map, initialiser of the coordinates, rank)."""
    base, _, coordinates = address.partition(",")
    names = [f"(int){_operand(part)}" for part in coordinates.strip().strip("{}").split(",")]
    return f"(const void*){_operand(base)}", ", ".join(names), len(names)


# ------------------------------------------------------------------ numbers
_ASSIGN: Final = {
    "cvt.rn.bf16x2.f32": "{0} = ::emu::pair16(::emu::to_bf16({2}), ::emu::to_bf16({1}));",
    "cvt.rn.f16x2.f32": "{0} = ::emu::pair16(::emu::to_f16({2}), ::emu::to_f16({1}));",
    "cvt.rn.satfinite.e4m3x2.f32": "{0} = ::emu::pair8(::emu::to_e4m3({2}), ::emu::to_e4m3({1}));",
    "cvt.rn.satfinite.e5m2x2.f32": "{0} = ::emu::pair8(::emu::to_e5m2({2}), ::emu::to_e5m2({1}));",
    "cvt.rn.bf16.f32": "{0} = ::emu::to_bf16({1});",
    "cvt.rn.f16.f32": "{0} = ::emu::to_f16({1});",
    "cvt.f32.f16": "{0} = ::emu::from_f16({1});",
    "cvt.f32.bf16": "{0} = ::emu::from_bf16({1});",
    "cvt.rn.f16x2.e4m3x2": "{0} = ::emu::pair16(::emu::to_f16(::emu::from_e4m3({1})), "
    "::emu::to_f16(::emu::from_e4m3({1} >> 8)));",
    "cvt.rn.f16x2.e5m2x2": "{0} = ::emu::pair16(::emu::to_f16(::emu::from_e5m2({1})), "
    "::emu::to_f16(::emu::from_e5m2({1} >> 8)));",
    "ex2.approx.ftz.f32": "{0} = ::emu::ftz(exp2f(::emu::ftz({1})));",
    "lg2.approx.ftz.f32": "{0} = log2f(::emu::ftz({1}));",
    "rcp.approx.ftz.f32": "{0} = ::emu::ftz(1.0f / ::emu::ftz({1}));",
    "rsqrt.approx.ftz.f32": "{0} = 1.0f / sqrtf(::emu::ftz({1}));",
    "div.full.f32": "{0} = {1} / {2};",
    "tanh.approx.f32": "{0} = tanhf({1});",
    "cvt.rna.tf32.f32": "::emu::put({0}, ::emu::to_tf32(::emu::bits_as<float>({1})));",
    "max.NaN.f32": "{0} = ::emu::max_nan({1}, {2});",
    "min.NaN.f32": "{0} = ::emu::min_nan({1}, {2});",
    "max.f32": "{0} = fmaxf({1}, {2});",
    "min.f32": "{0} = fminf({1}, {2});",
    "fma.rn.f32": "{0} = __builtin_fmaf({1}, {2}, {3});",
    "setp.ne.b32": "{0} = {1} != {2};",
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


@form(r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32|prefetch\.tensormap|griddepcontrol\.\w+")
@form(r"fence\.proxy\.tensormap::generic\.\w+\.gpu|cp\.async\.bulk\.prefetch\.L2\.global|fence\.proxy\.async\.global")
def _nothing(match: re.Match[str], o: list[str]) -> str:
    return ";"


@form(r"fence\.proxy\.async(\.shared::(cta|cluster))?")
def _fence_async(match: re.Match[str], o: list[str]) -> str:
    return "::emu::fence_async();"


@form(r"createpolicy\.fractional\.L2::evict_(first|last|normal|unchanged)\.b64")
def _policy(match: re.Match[str], o: list[str]) -> str:
    return f"{o[0]} = 0;"


@form(r"mov\.(u32|b32|u64|b64)")
def _mov(match: re.Match[str], o: list[str]) -> str:
    special = {
        "%%cluster_ctarank": "::emu::cluster_rank()",
        "%%cluster_nctarank": "::emu::cluster_size()",
        "%%clock64": "::emu::clock()",
        "%%smid": "0",
    }
    if o[0].startswith("{"):
        low, high = _names(o[0])
        return f"{low} = (unsigned short){o[1]}; {high} = (unsigned short)({o[1]} >> 16);"
    if o[1].startswith("{"):
        low, high = _names(o[1])
        return f"{o[0]} = ::emu::pair16({low}, {high});"
    return f"{o[0]} = {special.get(o[1], o[1])};"


@form(r"elect\.sync")
def _elect(match: re.Match[str], o: list[str]) -> str:
    predicate = o[0].partition("|")[2]
    return f"{_operand(predicate)} = ::emu::elect({o[1]}u);"


# ------------------------------------------------------------------ memory
@form(r"(ld|st)\.(?:weak\.|volatile\.)?shared(?:::(cta|cluster))?(?:\.v(2|4))?\.[buf](8|16|32|64)")
def _shared(match: re.Match[str], o: list[str]) -> str:
    kind, count = _BITS[match[4]], int(match[3] or 1)
    is_cluster = "true" if match[2] == "cluster" else "false"
    if match[1] == "ld":
        names = _names(o[0])
        moves = " ".join(f"::emu::put({name}, v[{i}]);" for i, name in enumerate(names))
        return f"{kind} v[{count}]; ::emu::load(v, {o[1]}, sizeof v, {is_cluster}); {moves}"
    values = ", ".join(f"::emu::raw<{kind}>({name})" for name in _names(o[1]))
    return f"const {kind} v[{count}] = {{{values}}}; ::emu::store({o[0]}, v, sizeof v, {is_cluster});"


@form(r"(ld|st)\.(?:weak\.|volatile\.)?global(?:\.nc)?(?:\.L1::\w+)?(?:\.v(2|4))?\.[buf](8|16|32|64)")
def _global(match: re.Match[str], o: list[str]) -> str:
    kind, count = _BITS[match[3]], int(match[2] or 1)
    size = f"{count} * sizeof({kind})"
    if match[1] == "ld":
        moves = " ".join(f"::emu::put({name}, v[{i}]);" for i, name in enumerate(_names(o[0])))
        return f"const {kind}* v = ::emu::global<const {kind}>({o[1]}, {size}); {moves}"
    names = enumerate(_names(o[1]))
    moves = " ".join(f"v[{i}] = ::emu::raw<{kind}>({name});" for i, name in names)
    return f"{kind}* v = ::emu::global<{kind}>({o[0]}, {size}); {moves}"


@form(r"(ld|st)matrix\.sync\.aligned\.m8n8\.x(1|2|4)(\.trans)?\.shared\.b16")
def _matrix(match: re.Match[str], o: list[str]) -> str:
    count, is_transposed = match[2], "true" if match[3] else "false"
    if match[1] == "ld":
        registers = ", ".join(f"&{name}" for name in _names(o[0]))
        return f"unsigned* const v[{count}] = {{{registers}}}; ::emu::load_matrix({o[1]}, v, {count}, {is_transposed});"
    registers = ", ".join(_names(o[1]))
    return f"const unsigned v[{count}] = {{{registers}}}; ::emu::store_matrix({o[0]}, v, {count}, {is_transposed});"


@form(r"cp\.async\.c[ag]\.shared\.global(?:\.L2::\w+)?")
def _cp_async(match: re.Match[str], o: list[str]) -> str:
    source = o[3] if len(o) > 3 else o[2]
    return f"::emu::cp_async({o[0]}, (const void*){o[1]}, {o[2]}, {source});"


@form(r"st\.async\.weak\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v(2|4))?\.[buf](32|64)")
def _store_async(match: re.Match[str], o: list[str]) -> str:
    kind, count = _BITS[match[2]], int(match[1] or 1)
    values = ", ".join(f"::emu::raw<{kind}>({name})" for name in _names(o[1]))
    return f"const {kind} v[{count}] = {{{values}}}; ::emu::store_async({o[0]}, v, sizeof v, {o[2]});"


_ATOMIC_TYPES: Final = {
    "u32": "unsigned", "b32": "unsigned", "s32": "int", "u64": "unsigned long long", "b64": "unsigned long long",
    "s64": "long long", "f32": "float", "f64": "double", "b16": "unsigned short", "f16": "f16", "bf16": "bf16",
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


@form(r"(ld|st)\.(?:relaxed|acquire|release)\.(?:cta|cluster|gpu|sys)\.global(?:\.v(2|4))?\.[busf](8|16|32|64)")
def _ordered_global(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::step(); {_global(match, o)}"


# ------------------------------------------------------------------ mbarrier
@form(r"mbarrier\.arrive(\.expect_tx)?(?:\.release\.(?:cta|cluster))?\.shared::(cta|cluster)\.b64")
def _arrive(match: re.Match[str], o: list[str]) -> str:
    is_cluster = "true" if match[2] == "cluster" else "false"
    if match[1]:
        return f"::emu::mbarrier_expect_tx({o[1]}, {o[2]}, {is_cluster}); ::emu::mbarrier_arrive({o[1]}, 1, {is_cluster});"
    count = o[2] if len(o) > 2 else "1"
    return f"::emu::mbarrier_arrive({o[1]}, {count}, {is_cluster});"


@form(r"mbarrier\.expect_tx\.relaxed\.(?:cta|cluster)\.shared::(cta|cluster)\.b64")
def _expect_tx(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::mbarrier_expect_tx({o[0]}, {o[1]}, {'true' if match[1] == 'cluster' else 'false'});"


@form(r"mbarrier\.(try|test)_wait\.parity(?:\.(?:acquire|relaxed)\.(?:cta|cluster))?\.shared::cta\.b64")
def _wait(match: re.Match[str], o: list[str]) -> str:
    return f"{o[0]} = ::emu::mbarrier_{match[1]}_wait({o[1]}, {o[2]});"


@form(r"cp\.async\.mbarrier\.arrive(\.noinc)?\.shared(?:::cta)?\.b64")
def _arrive_cp_async(match: re.Match[str], o: list[str]) -> str:
    return f"::emu::mbarrier_arrive_cp_async({o[0]}, {'true' if match[1] else 'false'});"


# ------------------------------------------------------------------ bulk copies
@form(
    r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cluster|cta)\.global(?:\.tile)?"
    r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?(?:\.L2::cache_hint)?"
)
def _tensor_load(match: re.Match[str], o: list[str]) -> str:
    pointer, at, rank = _coordinates(match, o[1])
    mask, flag = (o[3], "true") if match[2] else ("0", "false")
    return f"const int at[] = {{{at}}}; ::emu::tensor_load({o[0]}, {pointer}, {o[2]}, {mask}, {flag}, {rank}, at);"


@form(
    r"cp\.(reduce\.)?async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(\.add)?(?:\.tile)?\.bulk_group"
    r"(?:\.L2::cache_hint)?"
)
def _tensor_store(match: re.Match[str], o: list[str]) -> str:
    pointer, at, rank = _map_and_coordinates(o[0])
    if rank != int(match[2]) or bool(match[1]) != bool(match[3]):
        raise NotEmulated(f"{match[0]} with {rank} coordinates")
    is_add = "true" if match[1] else "false"
    return f"const int at[] = {{{at}}}; ::emu::tensor_store({pointer}, {o[1]}, {rank}, at, {is_add});"


@form(r"cp\.async\.bulk\.prefetch\.tensor\.([1-5])d\.L2\.global(?:\.tile)?")
def _tensor_prefetch(match: re.Match[str], o: list[str]) -> str:
    pointer, _, rank = _coordinates(match, o[0])
    return f"::emu::tensor_prefetch({pointer}, {rank});"


def _coordinates(match: re.Match[str], address: str) -> tuple[str, str, int]:
    pointer, at, rank = _map_and_coordinates(address)
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
    registers = _names(o[0])
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
        f"static const ::emu::Multiply form = {{{', '.join(fields)}}}; void* const d_regs[] = {{{d}}}; {a_regs} "
        f"::emu::wgmma(&form, d_regs, {len(registers)}, a, {a_desc}, {o[2]}, {o[3]});"
    )
