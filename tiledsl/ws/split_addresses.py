"""Addresses of copies in a loop, in two parts: what each row keeps, and one number an iteration.

`x_ptr + ((n * H + p + r) * W + q + s) * C + c` with r, s and c of the iteration is multiplied out,
and its terms are added up anew: `(x_ptr + ((n * H + p) * W + q) * C) + ((r * W + s) * C + c)`. The
first sum has a value for each row, which the threads hold; the second is computed once for all
copies of an iteration, which then take one addition each. Offsets have 64 bits and wrap, so that
the order of their terms changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace

from tiledsl.dtypes import int64
from tiledsl.ir.analysis.affine import Dims
from tiledsl.ir.analysis.affine import inner_dims
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import wanted_shape

MATRIX_RANK = 2
MAX_TERMS = 32
"""Of an address; one with more stays as it is."""
VIEWS = (tile.ExpandDims, tile.Broadcast, tile.Transpose)


class _TooLong(Exception):
    """An address with more terms than are worth adding up anew."""


@dataclass(frozen=True)
class Leaf:
    """A factor of a term.

    is_cast: as int64. dims: for each dimension of a tile the one of the copy that it runs along.
    """

    value: Value
    is_cast: bool = False
    dims: Dims = ()

    @property
    def key(self) -> tuple[int, bool, Dims]:
        return (self.value.id, self.is_cast, self.dims)


@dataclass(frozen=True)
class Term:
    """`number * leaves`, in int64; leaves by key."""

    number: int = 1
    leaves: tuple[Leaf, ...] = ()

    @property
    def tiles(self) -> tuple[Leaf, ...]:
        return tuple(x for x in self.leaves if isinstance(x.value.type, TileType))

    def runs_along(self, dim: int) -> bool:
        """Whether it changes along one dimension alone."""
        return self.dims == frozenset((dim,))

    @property
    def dims(self) -> frozenset[int]:
        """Dimensions of the copied tile that it changes along."""
        return frozenset(d for x in self.tiles for d in x.dims if d is not None)


Terms = tuple[Term, ...]


def split_addresses(graph: TileGraph, region: Region) -> int:
    """Rewrites addresses of copies and loads ahead in loops under `region`; returns how many."""
    known: dict[object, Value] = {}
    count = 0
    facts = axis_facts(region, graph.facts.get("divisors", {}))
    for copy in [op for op in region.walk() if isinstance(op, Copy | Load)]:
        loop = next((op for op in graph.enclosing(copy) if isinstance(op, For)), None)
        if loop is None:
            continue
        fast = None
        if isinstance(copy, Load):
            if not is_ahead(graph, copy):
                continue
            # Lanes lie along the first dimension, so that a thread has few places of it.
            fast = 1 - wanted_shape(copy, facts).order[0]
        count += _Split(graph, loop, copy, known, fast).run()
    return count


def is_ahead(graph: TileGraph, op: Op) -> bool:
    """Whether a load brings a tile of two dimensions for the next iteration of a loop alone."""
    if not isinstance(op, Load):
        return False
    type_ = op.results[0].type
    if not isinstance(type_, TileType) or type_.rank != MATRIX_RANK:
        return False
    users = [u.op for u in graph.users(op.results[0])]
    return len(users) == 1 and isinstance(users[0], Yield) and users[0].parent is op.parent


# ---------------------------------------------------------------------- multiplying out
def _sum(terms: Iterable[Term]) -> Terms:
    """Equal terms merged, zeros dropped."""
    found: dict[tuple[object, ...], Term] = {}
    for t in terms:
        key = tuple(x.key for x in t.leaves)
        old = found.get(key)
        found[key] = t if old is None else replace(old, number=old.number + t.number)
    kept = tuple(t for t in found.values() if t.number)
    if len(kept) > MAX_TERMS:
        raise _TooLong
    return kept


def _product(a: Terms, b: Terms) -> Terms:
    return _sum(
        Term(p.number * q.number, tuple(sorted((*p.leaves, *q.leaves), key=lambda x: x.key)))
        for p in a
        for q in b
    )


@deep
def _address(value: Value, dims: Dims) -> tuple[Value, Terms] | None:
    """A tile of pointers as a scalar pointer and terms; None where it is no such sum."""
    op = value.defining_op
    match op:
        case pointer.Add():
            inner = _address(op.pointer, dims)
            return (
                None if inner is None else (inner[0], _sum((*inner[1], *_terms(op.offset, dims))))
            )
        case tile.ExpandDims() | tile.Broadcast() | tile.Transpose():
            return _address(op.a, inner_dims(op, dims))
        case tile.Splat():
            return _address(op.a, ())
        case _:
            return (value, ()) if isinstance(value.type, ScalarType) else None


@deep
def _terms(value: Value, dims: Dims) -> Terms:
    """An int64 scalar or tile as a sum. Raises _TooLong."""
    op = value.defining_op
    match op:
        case ew.Add():
            return _sum((*_terms(op.a, dims), *_terms(op.b, dims)))
        case ew.Sub():
            return _sum((*_terms(op.a, dims), *_negative(_terms(op.b, dims))))
        case ew.Neg():
            return _negative(_terms(op.a, dims))
        case ew.Mul():
            return _product(_terms(op.a, dims), _terms(op.b, dims))
        case ew.Constant():
            return _sum([Term(int(op.value))])
        case tile.Splat():
            return _terms(op.a, ())
        case tile.ExpandDims() | tile.Broadcast() | tile.Transpose():
            return _terms(op.a, inner_dims(op, dims))
        case _:
            return (Term(1, (_leaf(value, dims),)),)


def _negative(terms: Terms) -> Terms:
    return tuple(replace(t, number=-t.number) for t in terms)


def _leaf(value: Value, dims: Dims) -> Leaf:
    """What a factor is behind views and a cast."""
    op, is_cast = value.defining_op, False
    if isinstance(op, ew.Cast) and op.dtype == int64 and _kind(op.a) == "int":
        value, is_cast = op.a, True
    while isinstance(op := value.defining_op, (*VIEWS, tile.Splat)):
        dims = () if isinstance(op, tile.Splat) else inner_dims(op, dims)
        value = op.a
    return Leaf(value, is_cast, dims)


def _kind(value: Value) -> str:
    assert isinstance(value.type, ScalarType | TileType)
    return value.type.dtype.kind


# ---------------------------------------------------------------------- adding up anew
class _Split:
    """One copy or load. known: sums that were made in front of the loops of a region.

    fast: the dimension whose terms are added in each iteration, if that is known.
    """

    def __init__(
        self,
        graph: TileGraph,
        loop: For,
        copy: Copy | Load,
        known: dict[object, Value],
        fast: int | None = None,
    ) -> None:
        self.fast = fast
        self.graph = graph
        self.loop = loop
        self.copy = copy
        self._made = known
        self._inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args)
        around = self.graph.enclosing(copy)
        self._anchor = [copy, *around][around.index(loop)]
        type_ = copy.pointer.type
        assert isinstance(type_, TileType)
        self.shape = type_.shape

    def run(self) -> bool:
        """Whether the address was split: a term is one of rows, of columns, or of the iteration."""
        try:
            found = _address(self.copy.pointer, tuple(range(len(self.shape))))
        except _TooLong:
            return False
        if found is None or found[0] in self._inside:
            return False
        base, terms = found
        if any(self._is_nested(x.value) for t in terms for x in t.leaves):
            return False
        varying = [t for t in terms if any(x.value in self._inside for x in t.leaves)]
        fixed = [t for t in terms if t not in varying]
        if any(t.tiles for t in varying) or not self._mixes():
            return False
        if not all(self._is_line(t) for t in fixed):
            return False
        self._rewrite(base, fixed, varying)
        return True

    def _is_nested(self, value: Value) -> bool:
        """Whether a factor is made under what stands around the copy in its loop."""
        op = value.defining_op
        if value not in self._inside:
            return False
        return op.parent is not self.loop.body if op else value.owner is not self.loop.body

    def _is_line(self, term: Term) -> bool:
        """Whether a term is a number, or changes along one dimension as one tile does."""
        if not term.tiles:
            return True
        if len(term.tiles) > 1 or len(term.dims) != 1:
            return False
        leaf, dim = next(iter(term.tiles)), min(term.dims)
        assert isinstance(leaf.value.type, TileType)
        return leaf.value.type.rank == 1 or leaf.value.type.shape == self._line_shape(dim)

    def _line_shape(self, dim: int) -> tuple[int, ...]:
        return tuple(n if d == dim else 1 for d, n in enumerate(self.shape))

    def _mixes(self) -> bool:
        """Whether a tile that follows from the iteration is a factor."""
        work, seen = [self.copy.pointer], set[Value]()
        while work:
            value = work.pop()
            op = value.defining_op
            if op is None or value in seen or value not in self._inside:
                continue
            seen.add(value)
            if isinstance(op, ew.Mul) and isinstance(value.type, TileType):
                return True
            work += op.operands
        return False

    def _rewrite(self, base: Value, fixed: list[Term], varying: list[Term]) -> None:
        """The pointer to each row is made in front of the loop; columns are added to the step."""
        loop, copy = self.loop, self.copy
        assert loop.parent is not None
        before = Builder(self.graph, loop.parent, loop.parent.ops.index(loop), copy.loc)
        inside = Builder(self.graph, loop.body, loop.body.ops.index(self._anchor), copy.loc)
        fast = self._fast_dim(fixed)
        rest = [t for t in fixed if not t.runs_along(fast)]
        row = self._known((base, self.shape, tuple(rest)), lambda: self._row(before, base, rest))
        offset = inside.value(tile.Splat(self._scalar(inside, varying), self.shape))
        if isinstance(row.type, ScalarType):
            row = inside.value(tile.Splat(row, self.shape))
        else:
            row = self._spread(inside, row, 1 - fast)
        along = [t for t in fixed if t.runs_along(fast)]
        if along:
            line = self._spread(inside, self._line(inside, along, fast), fast)
            if self.fast is None:
                offset = inside.value(ew.Add(offset, line))
            else:  # few rows, each with many columns
                row, offset = inside.value(pointer.Add(row, offset)), line
        old, at = copy.pointer, copy.operands.index(copy.pointer)
        self.graph.set_operand(copy, at, inside.value(pointer.Add(row, offset)))
        self._drop(old)

    def _drop(self, value: Value) -> None:
        """Erases what nothing reads any more."""
        todo = [value]
        while todo:
            op = (dead := todo.pop()).defining_op
            if op is None or op.parent is None or op.effect is not Effect.PURE or op.regions:
                continue
            if not self.graph.has_uses(dead):
                self.graph.erase(op)
                todo += op.operands

    def _fast_dim(self, fixed: list[Term]) -> int:
        """The dimension whose neighbours are neighbours in memory; else the last."""
        if self.fast is not None:
            return self.fast
        for dim in range(len(self.shape)):
            along = [t for t in fixed if t.runs_along(dim)]
            if len(along) == 1 and along[0].number == 1 and len(along[0].leaves) == 1:
                return dim
        return len(self.shape) - 1

    def _known(self, what: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """What was made in front of another loop of the region, or is made now."""
        key = (self.loop.parent, *what)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _row(self, b: Builder, base: Value, terms: list[Term]) -> Value:
        """The pointer that a base is moved to: a scalar, or a line of them."""
        alone = [t for t in terms if not t.tiles]
        if alone:
            base = b.value(pointer.Add(base, self._scalar(b, alone)))
        along = [t for t in terms if t.tiles]
        if not along:
            return base
        (dim,) = along[0].dims
        line = self._line(b, along, dim)
        assert isinstance(line.type, TileType)
        return b.value(pointer.Add(b.value(tile.Splat(base, line.type.shape)), line))

    # ------------------------------------------------------------------ sums
    def _scalar(self, b: Builder, terms: list[Term]) -> Value:
        """A sum of terms without tiles."""
        parts = [self._factor(b, t.number, t.leaves) for t in terms]
        return self._total(b, parts) if parts else b.value(ew.Constant(0, int64))

    def _line(self, b: Builder, terms: list[Term], dim: int) -> Value:
        """A sum of terms along one dimension: of rank 1 where their tiles are.

        Else of extent 1 in the other dimensions.
        """
        parts: list[Value] = []
        tiles = [self._leaf(b, x) for t in terms for x in t.tiles]
        is_flat = all(isinstance(v.type, TileType) and v.type.rank == 1 for v in tiles)
        shape = (self.shape[dim],) if is_flat else self._line_shape(dim)
        for t, value in zip(terms, tiles, strict=True):
            line = value if is_flat else self._unflat(b, value, dim)
            rest = tuple(x for x in t.leaves if x not in t.tiles)
            if t.number != 1 or rest:
                by = self._factor(b, t.number, rest)
                line = b.value(ew.Mul(line, b.value(tile.Splat(by, shape))))
            parts.append(line)
        return self._total(b, parts)

    def _unflat(self, b: Builder, line: Value, dim: int) -> Value:
        """A line with extent 1 in the other dimensions."""
        assert isinstance(line.type, TileType)
        for axis in range(len(self.shape)) if line.type.rank == 1 else ():
            if axis != dim:
                line = b.value(tile.ExpandDims(line, axis))
        return line

    def _factor(self, b: Builder, number: int, leaves: tuple[Leaf, ...]) -> Value:
        values = [self._leaf(b, x) for x in leaves]
        if number != 1 or not values:
            values.append(b.value(ew.Constant(number, int64)))
        made = values[0]
        for value in values[1:]:
            made = b.value(ew.Mul(made, value))
        return made

    def _total(self, b: Builder, parts: list[Value]) -> Value:
        made = parts[0]
        for part in parts[1:]:
            made = b.value(ew.Add(made, part))
        return made

    def _leaf(self, b: Builder, leaf: Leaf) -> Value:
        return b.value(ew.Cast(leaf.value, int64)) if leaf.is_cast else leaf.value

    def _spread(self, b: Builder, line: Value, dim: int) -> Value:
        """A line as a tile of the copy's shape."""
        line = self._unflat(b, line, dim)
        assert isinstance(line.type, TileType)
        return line if line.type.shape == self.shape else b.value(tile.Broadcast(line, self.shape))
