"""Reductions of tiles along axes with any associative function."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.axis_plan import area_bytes
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import wide
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine

MERGE_BYTES = 128
"""What each of two exchanges of a cluster has at least."""
Array = np.ndarray[Any, np.dtype[Any]]
Arrays = tuple[Array, ...]

# Functions with a name: one operand, except the last two, which take (value, index).
KINDS = ("sum", "prod", "max", "min", "xor", "or", "and", "argmax", "argmin")
_ALLOWED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "argmax", "argmin"), ("int", "uint", "float")),
    **dict.fromkeys(("xor", "or", "and"), ("bool", "int", "uint")),
}
_UFUNCS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.fmax,
    "min": np.fmin,
    "xor": np.bitwise_xor,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
}


def combined_types(values: Sequence[Value], what: str) -> tuple[TileType, ...]:
    """The types of tiles that are reduced or scanned together. Raises TypeMismatch."""
    types: list[TileType] = []
    for v in values:
        if not isinstance(v.type, TileType):
            raise TypeMismatch(f"{what}: expected a tile, got {v.type}")
        types.append(v.type)
    if not types:
        raise TypeMismatch(f"{what}: expected at least one tile")
    if any(t.shape != types[0].shape for t in types):
        raise TypeMismatch(f"{what}: shapes differ: {', '.join(str(list(t.shape)) for t in types)}")
    return tuple(types)


def check_kind(kind: str, dtypes: Sequence[DType], what: str) -> None:
    """Whether a named function takes these dtypes. Raises TypeMismatch."""
    if kind not in KINDS:
        raise TypeMismatch(f"{what}: unknown kind {kind!r}")
    count = 2 if kind.startswith("arg") else 1
    if len(dtypes) != count:
        raise TypeMismatch(f"{what}: {kind} takes {count} tiles, got {len(dtypes)}")
    if dtypes[0].kind not in _ALLOWED[kind]:
        raise TypeMismatch(f"{what}: {kind} of {dtypes[0]!r} is not supported")


def check_body(op: Op, body: Region, dtypes: Sequence[DType], kind: str) -> None:
    """The form of a combine region: scalar ops, results of the operands' dtypes."""
    name = op.opcode.partition(".")[2]
    if kind:
        if body.ops:
            raise VerifyError(f"{name}: kind {kind} has no body")
        return
    want = [ScalarType(d) for d in dtypes]
    if [a.type for a in body.args] != [*want, *want]:
        raise VerifyError(f"{name}: the body takes each operand's element twice")
    end = body.terminator
    if not isinstance(end, Yield) or [v.type for v in end.values] != want:
        raise VerifyError(f"{name}: the body must yield {', '.join(map(str, want))}")
    for inner in body.walk():
        if not inner.opcode.startswith("elementwise.") and inner is not end:
            raise VerifyError(
                f"{name}: a combine function may only compute on its arguments, "
                f"not contain {inner.opcode}"
            )


def exchanged_bytes(dtype: DType) -> int:
    """Bytes of an element on its way through shared memory: small floats travel as f32."""
    return 4 if dtype.is_float and dtype.bits < 32 else dtype.bytes


class Reduce(Op, opcode="reduce.reduce", levels=Level.ALL):
    """Combines the elements along `axes` in any order.

    inputs: tiles of one shape that are reduced together; results have the axes left out, and are
    scalars when none is left. kind: sum, prod, max, min (which ignore NaN), xor, or, and, argmax,
    argmin (of values and i32 indexes; numbers before NaN, and of equal values the smallest index),
    or empty for `body`, whose arguments are one element of each input, then another, and which
    yields their combination.
    A float sum is accumulated in f32 (f64) and rounded once. widened: dtypes to which elements are
    cast first, one for each input; empty for the inputs' own.
    scratch: shared memory, where the elements of several warps meet. barrier: first named barrier
    of the role, 0 where it is the whole CTA. guarded: whether others may still read the scratch.
    barriers, cursor: two mbarriers, each with a half of the scratch, on which the CTAs of a cluster
    exchange what they have in turn; without them they wait at the cluster's barrier.
    chains: a thread combines its elements in so many chains, each in the elements' order; 0 for a
    balanced tree. Only for a kind with one input. by_three: a thread combines three elements at a
    time, by their bits; of an f32 maximum whose elements are no NaN. rising: the indexes beside
    values rise along the axes, the last of them first. within_warps: each warp combines its own
    elements, and threads hold what those of theirs give; what `reduce.merge_exponentials` makes of
    such a maximum and sum is that of all (semantics: all elements, as if they were of one warp).
    within_threads: the same for each thread, whose results `reduce.merge_threads` combines.
    """

    vectorized = True
    numbers = True
    inputs: tuple[Value, ...] = operands()
    scratch: Value | None = operand(default=None)
    barriers: Value | None = operand(default=None)
    cursor: Value | None = operand(default=None)
    axes: tuple[int, ...] = attribute(kw_only=True)
    kind: str = attribute(default="")
    widened: tuple[DType, ...] = attribute(default=())
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)
    chains: int = attribute(default=0)
    by_three: bool = attribute(default=False)
    rising: bool = attribute(default=False)
    within_warps: bool = attribute(default=False)
    within_threads: bool = attribute(default=False)
    body: Region = region(factory=Region)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Dtypes in which elements are combined."""
        return self.widened or tuple(t.dtype for t in combined_types(self.inputs, "reduce"))

    def scratch_bytes(self) -> int:
        """Shared memory for the exchange between warps; the operands have layouts."""
        types = combined_types(self.inputs, "reduce")
        layout = types[0].layout
        assert layout is not None
        plan = AxisPlan(layout, self.axes)
        if not plan.needs_warps or self.within_warps or self.within_threads:
            return 0
        sizes = [exchanged_bytes(d) for d in self.dtypes]
        if not self.kind and any(layout.padded_shape[a] > types[0].shape[a] for a in self.axes):
            sizes = [1, *sizes]
        area = area_bytes(plan.partials(plan.result.num_regs), sizes)
        return area if self.barriers is None else 2 * area

    def infer_types(self) -> tuple[Type, ...]:
        types = combined_types(self.inputs, "reduce")
        rank = types[0].rank
        if not self.axes or list(self.axes) != sorted(set(self.axes) & set(range(rank))):
            raise TypeMismatch(f"reduce: axes {self.axes} of a tile of rank {rank}")
        if len(self.dtypes) != len(types):
            raise TypeMismatch(f"reduce: {len(self.dtypes)} dtypes for {len(types)} tiles")
        if self.kind:
            check_kind(self.kind, self.dtypes, "reduce")
        shape = tuple(n for i, n in enumerate(types[0].shape) if i not in self.axes)
        return tuple(TileType(shape, d) if shape else ScalarType(d) for d in self.dtypes)

    def verify(self, target: Target) -> None:
        check_body(self, self.body, self.dtypes, self.kind)
        if self.chains < 0 or (self.chains and (not self.kind or len(self.inputs) != 1)):
            raise VerifyError(f"reduce: {self.chains} chains, of a kind with one input only")
        if self.by_three and (self.kind != "max" or self.dtypes != (float32,) or self.chains):
            raise VerifyError("reduce: by_three takes maxima of f32, not in chains")
        if (self.within_warps or self.within_threads) and self.kind not in ("max", "sum"):
            raise VerifyError("reduce: only maxima and sums of warps or threads are merged")
        if self.rising and not self.kind.startswith("arg"):
            raise VerifyError("reduce: only argmax and argmin have indexes that rise")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        inputs = [a.astype(d.numpy) for a, d in zip(arrays, self.dtypes, strict=False)]
        if self.kind in _UFUNCS:
            return (self._named(np.asarray(inputs[0])),)
        rank = np.ndim(inputs[0])
        kept = [i for i in range(rank) if i not in self.axes]
        moved = [np.transpose(a, (*self.axes, *kept)) for a in inputs]
        parts = [a.reshape(-1, *(a.shape[len(self.axes) :])) for a in moved]
        while len(parts[0]) > 1:
            pairs = len(parts[0]) // 2 * 2
            left, right = [a[0:pairs:2] for a in parts], [a[1:pairs:2] for a in parts]
            both: Arrays = yield from combine(machine, self.kind, self.body, left, right)
            rows = zip(both, left, parts, strict=True)
            parts = [_joined(np.broadcast_to(n, old.shape), a[pairs:]) for n, old, a in rows]
        return tuple(a[0] for a in parts)

    def _named(self, a: Any) -> Any:
        x = wide(a)
        ufunc: Any = _UFUNCS[self.kind]
        with np.errstate(all="ignore"):
            found = ufunc.reduce(x, axis=self.axes, dtype=x.dtype)
        return np.asarray(found).astype(a.dtype)


class MergeThreads(Op, opcode="reduce.merge_threads", levels=Level.ALL):
    """What all threads of a CTA hold, combined.

    value: of each thread, from reductions `within_threads`. kind: max or sum. warps: of the CTA.
    scratch, barrier, guarded: as in `reduce.reduce`. Semantics: the value itself, as if all
    elements had been of one thread.
    """

    value: Value = operand()
    scratch: Value | None = operand(default=None)
    kind: str = attribute(kw_only=True)
    warps: int = attribute(kw_only=True)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def scratch_bytes(self) -> int:
        """Shared memory for what the warps tell each other."""
        return area_bytes(self.warps, [float32.bytes]) if self.warps > 1 else 0

    def infer_types(self) -> tuple[Type, ...]:
        if self.value.type != ScalarType(float32):
            raise TypeMismatch(f"merge_threads: of {self.value.type}, expected f32")
        return (self.value.type,)

    def verify(self, target: Target) -> None:
        if self.kind not in ("max", "sum"):
            raise VerifyError(f"merge_threads: kind {self.kind!r} is neither max nor sum")

    def evaluate(self, value: Any) -> Any:
        return value


class MergeExponentials(Op, opcode="reduce.merge_exponentials", levels=Level.ALL):
    """Largest elements and sums of exponentials of the warps of a cluster, in one exchange.

    largest: of each warp, 0 where it has none over -inf; total: its sum of exp(x - largest), 0 in
    that case. Results: the largest of all warps, the sum of exp(x - that), and by what the warp's
    exponentials are multiplied. warps: of all CTAs; each of the num_ctas has as many.
    scratch, barriers, cursor: as in `reduce.reduce`.
    """

    vectorized = True
    largest: Value = operand()
    total: Value = operand()
    scratch: Value | None = operand(default=None)
    barriers: Value | None = operand(default=None)
    cursor: Value | None = operand(default=None)
    warps: int = attribute(kw_only=True)
    num_ctas: int = attribute(kw_only=True)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    @property
    def count(self) -> int:
        """Rows of a thread; the operands have layouts."""
        layout = self.largest.type.layout if isinstance(self.largest.type, TileType) else None
        return layout.num_regs if layout else 1

    def scratch_bytes(self) -> int:
        """Shared memory for what warps, then CTAs tell; the operands have layouts."""
        sizes, count = (float32.bytes, float32.bytes), self.count
        one = sum(
            area_bytes(n * count, sizes) for n in (self.warps // self.num_ctas, self.num_ctas)
        )
        return 2 * max(one, MERGE_BYTES)

    def infer_types(self) -> tuple[Type, ...]:
        type_ = self.largest.type
        is_f32 = isinstance(type_, TileType | ScalarType) and type_.dtype == float32
        if self.total.type != type_ or not is_f32:
            raise TypeMismatch(f"merge_exponentials: of {type_} and {self.total.type}")
        if self.num_ctas < 1 or self.warps % self.num_ctas:
            raise TypeMismatch(f"merge_exponentials: {self.warps} warps in {self.num_ctas} CTAs")
        return (type_,) * 3

    def evaluate(self, largest: Any, total: Any) -> Any:
        with np.errstate(all="ignore"):
            found = np.where(total == 0, np.float32(-np.inf), largest)
            zero = found - found
            factor = np.where(total == 0, zero, np.exp(largest - found))
            return found, total + zero, factor


def combine(
    machine: Machine, kind: str, body: Region, left: Sequence[Any], right: Sequence[Any]
) -> Generator[None, None, Arrays]:
    """Combines two lists of arrays, `left` before `right`; a generator of steps."""
    dtypes = [np.asarray(x).dtype for x in left]
    if not kind:
        found: tuple[Any, ...] = yield from machine.run_region(body, (*left, *right))
    elif kind in _UFUNCS:
        with np.errstate(all="ignore"):
            found = (_UFUNCS[kind](wide(left[0]), wide(right[0])),)
    else:
        found = _pick(kind, left, right)
    return tuple(np.asarray(x).astype(d) for x, d in zip(found, dtypes, strict=True))


def _joined(first: Array, second: Array) -> Array:
    return np.concatenate([first, second])


def _pick(kind: str, left: Sequence[Array], right: Sequence[Array]) -> Arrays:
    (x, i), (y, j) = left, right
    wx, wy = wide(x), wide(y)
    wins = wx > wy if kind == "argmax" else wx < wy
    loses = wx < wy if kind == "argmax" else wx > wy
    no_x, no_y = np.isnan(wx), np.isnan(wy)
    first: Array = wins | (~loses & np.where(no_x == no_y, i < j, no_y))
    best, at = x.copy(), i.copy()
    np.copyto(best, y, where=~first)
    np.copyto(at, j, where=~first)
    return best, at
