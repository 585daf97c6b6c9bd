"""Warpgroup multiplies: issue, ordering, waits, and the sum over a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.fragments import Fragment
from tiledsl.codegen.fragments import fragment_of
from tiledsl.codegen.mma_functions import ATOM_BYTES
from tiledsl.codegen.mma_functions import Operand
from tiledsl.codegen.registry import Tie
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import overwrites
from tiledsl.codegen.watch import number
from tiledsl.codegen.wgmma import wgmma_shape
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import mma_operand_8bit
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma as ops
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class IssueContext:
    """One multiply of a slot. a, b.

    Addresses of this warpgroup's parts, in the instruction's order.
    """

    function: str
    acc: str
    a: str
    b: str
    keep: str


@dataclass(frozen=True)
class WaitContext:
    """pending: groups that may stay in flight. copies.

    Moves into variables that could not be shared.
    """

    pending: int
    copies: str


@dataclass(frozen=True)
class ReduceContext:
    """Sum over a cluster. owner: the assignment of the flag, up to `=`."""

    owner: str
    cluster_size: int
    acc: str
    buffer: str
    barriers: str
    index: str
    rank: str


@dataclass(frozen=True)
class NoContext:
    """A statement without operands."""


@overwrites("mma.issue", "mma.cluster_reduce")
def issue_ties(op: ops.Issue | ops.ClusterReduce) -> tuple[Tie, ...]:
    """The accumulator is updated in place."""
    return ((op.results[0], op.acc),)


@dataclass(frozen=True)
class SpreadContext:
    """The tile whose bytes move."""

    value: str


@overwrites("mma.spread")
def spread_ties(op: ops.Spread) -> tuple[Tie, ...]:
    """The bytes move in place."""
    return ((op.results[0], op.a),)


@emits("mma.spread")
def spread(op: ops.Spread, e: Emission) -> SpreadContext:
    """`spread_quads(p_1);`."""
    return SpreadContext(e.in_place((op.results[0], op.a)))


@overwrites("mma.wait")
def wait_ties(op: ops.Wait) -> tuple[Tie, ...]:
    """Waiting moves nothing."""
    return tuple(zip(op.results, op.accs, strict=True))


@emits("mma.issue")
def issue(op: ops.Issue, e: Emission) -> IssueContext:
    """`mma_128x192x64_bf16(acc_1, a_2, b_2, kb_1 != 0);`."""
    f = _fragment(op.result, paired=smem_type(op.b, "mma").paired)
    left, right = (op.b, op.a) if op.swapped else (op.a, op.b)
    if f.row_dim != int(op.swapped):
        raise CodegenError(
            f"mma: the accumulator's rows run along dimension {f.row_dim}, swapped is {op.swapped}"
        )
    M_dim, K_dim = (1, 0) if op.swapped else (0, 1)
    a = _operand(left, M_dim, K_dim)
    b = _operand(right, 1 - M_dim, 1 - K_dim)
    acc = tile_type(op.result, "mma")
    form = wgmma_shape(
        acc.dtype,
        a.dtype,
        b.dtype,
        f.cols,
        a_in_regs=a.num_regs > 0,
        trans_a=not a.is_K_major,
        trans_b=not b.is_K_major,
    )
    K = op.count_K or smem_type(op.b, "mma").shape[0]
    if K % form.K:
        raise CodegenError(f"mma: K is {K}, expected a multiple of {form.K} for {a.dtype}")
    if f.groups != e.place.groups:
        raise CodegenError(
            f"mma: the accumulator lies over {f.groups} warpgroups, the role has {e.place.groups}"
        )
    sums = e.in_place((op.result, op.acc))
    return IssueContext(
        e.functions.name(f.rows, f.cols, K, form, a, b),
        f"{sums}.w" if form.acc_ptx == "f16" else sums,
        _part(left, a, f.rows, f.row_groups, e) + _from_K(a, op.first_K),
        _part(right, b, f.cols, f.col_groups, e) + _from_K(b, op.first_K),
        "1" if op.keep is None else e.text(op.keep),
    )


def _fragment(value: Value, *, paired: bool) -> Fragment:
    f = fragment_of(tile_type(value, "mma"), paired=paired)
    if f is None:
        raise CodegenError(f"mma: {value.type} is no accumulator layout")
    return f


def _operand(value: Value, mn_dim: int, K_dim: int) -> Operand:
    """How an operand lies in its slot."""
    if isinstance(value.type, TileType):
        layout = value.type.layout
        if layout is None or not _is_left_operand(value):
            raise CodegenError(f"mma: register operand {value.type} is no operand layout")
        return Operand(value.type.dtype, True, 64, layout.num_regs)
    t = smem_type(value, "mma")
    if t.swizzle_bytes != 128:
        raise CodegenError(f"mma: operand {t} is not 128-byte swizzled")
    is_K_major = t.major == K_dim
    return Operand(t.dtype, is_K_major, t.shape[mn_dim] if is_K_major else t.shape[K_dim])


def _is_left_operand(value: Value) -> bool:
    """Whether a register tile lies as wgmma reads it: 8-bit elements in fours, others in pairs."""
    type_ = tile_type(value, "mma")
    if type_.dtype.bits > 8 or isinstance(value.defining_op, ops.Spread):
        return fragment_of(type_) is not None
    assert type_.layout is not None
    M, K = type_.shape
    return type_.layout.same_places(mma_operand_8bit(M, K, type_.layout.num_warps // 4))


def _from_K(operand: Operand, first: int) -> str:
    """What leads from the start of an operand to element `first` of K."""
    box = ATOM_BYTES // operand.dtype.bytes
    if not first:
        return ""
    if operand.num_regs or not operand.is_K_major or first % box:
        raise CodegenError(f"mma: no part of {operand.dtype} operands starts at element {first}")
    return f" + {first // box * operand.box_bytes}u"


def _part(value: Value, operand: Operand, extent: int, groups: int, e: Emission) -> str:
    """Address of this warpgroup's part of an operand that `groups` warpgroups share."""
    if groups == 1 or operand.num_regs:
        return e.text(value)
    bytes_ = operand.part_bytes(extent)
    if bytes_ is None:
        raise CodegenError(
            f"mma: warpgroups cannot take {extent} columns each of an MN-major operand",
            hint="only multiples of 64",
        )
    return f"{e.text(value)} + {e.part_index} * {bytes_}u"


@emits("mma.fence", "mma.commit")
def plain(op: object, e: Emission) -> NoContext:
    """A call without arguments."""
    del op, e
    return NoContext()


@emits("mma.wait")
def wait(op: ops.Wait, e: Emission) -> WaitContext:
    """`wgmma_wait<1>();`."""
    copies: list[str] = []
    for result, operand in wait_ties(op):
        if not e.users(result):
            continue
        if op.pending == 0:
            # Without the pin ptxas may move reads of the accumulator above the wait (C7514). Where
            # the next iteration alone reads it, NVVM takes less time for it.
            copies.append(f"keep({e.text(operand)});")
        if e.variables.root(result) is e.variables.root(operand):
            continue
        source = e.text(operand)
        copies.append(f"copy({e.name(result, 'acc')}, {source});")
    return WaitContext(op.pending, "\n".join(copies))


@emits("mma.cluster_reduce")
def cluster_reduce(op: ops.ClusterReduce, e: Emission) -> ReduceContext:
    """`const bool owner_1 = cluster_reduce<2>(acc_1, buffer_1, g_1, rank_1);`."""
    if op.buffer is None or op.barriers is None:
        raise CodegenError("mma.cluster_reduce has no buffer or no barriers")
    if not isinstance(op.acc.type, TileType) or op.acc.type.dtype.name != "f32":
        raise CodegenError(f"mma.cluster_reduce sums f32 accumulators, got {op.acc.type}")
    acc = e.in_place((op.results[0], op.acc))
    owner = e.assignment(op.results[1], "owner")
    site = f", {number(op, e, op.barriers.name)}" if e.watch is not None else ""
    return ReduceContext(
        owner,
        op.cluster_size,
        acc,
        e.text(op.buffer),
        e.text(op.barriers),
        e.text(op.index),
        e.text(op.rank) + site,
    )


@dataclass(frozen=True)
class PinContext:
    """The registers that are tested, and where the store would go."""

    value: str
    scratch: str


@emits("mma.pin")
def pin(op: ops.Pin, e: Emission) -> PinContext:
    """`pin(x_1, pins_1);`."""
    assert op.scratch is not None
    return PinContext(e.text(op.value), e.text(op.scratch))
