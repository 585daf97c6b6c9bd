"""Finds erf and tanh whose results are only added to constants, as in the activations of a layer.

1 + erf(x) keeps nothing of the precision that erf has near 0, which is what half of its
instructions are for: a result that is right to 1e-7 of 1 takes one exponential, and a factor on
its argument nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tiledsl.dtypes import float32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target

_SHAPES = tile.Broadcast | tile.ExpandDims | tile.Splat
_SCALES = (1e-3, 1e3)
"""Factors that the coefficients take in: their eighth powers are normal numbers."""


@register_pass("sums-with-one", consumes=Level.TILE, produces=Level.TILE)
def sums_with_one(graph: TileGraph, target: Target) -> PassReport:
    """Marks f32 erf and tanh `absolute` where all they are used for is a sum with 1 or more.

    Positive constant factors of their arguments become their `scale`. A product of such a sum with
    what has the argument's sign, h * (1 + erf(x)), becomes one rounding of h + h * erf(x).
    """
    del target
    changes = 0
    for op in list(graph.walk()):
        if not isinstance(op, ew.Erf | ew.Tanh) or op.absolute or _dtype(op.result) != float32:
            continue
        users = [u.op for u in graph.users(op.result)]
        if not users or not all(_adds_constant(u) for u in users):
            continue
        base, scale = _scaled(op.a)
        if not _is_scale(scale):
            base, scale = op.a, 1.0
        new = op.rebuild({op.a: base}, absolute=True, scale=scale)
        graph.replace_op(op, new)
        changes += 1
        for product in [p for user in users for p in _fused(graph, user, base)]:
            changes += 1 + _halve(graph, new, base, product.a.defining_op)
    return PassReport("sums-with-one", changes)


def _is_scale(factor: float) -> bool:
    return _SCALES[0] <= factor <= _SCALES[1]


def _dtype(value: Value) -> object:
    type_ = value.type
    return type_.dtype if isinstance(type_, ScalarType | TileType) else None


def _constant(value: Value) -> float | None:
    """The number that all elements are."""
    while isinstance(op := value.defining_op, _SHAPES):
        value = op.a
    return float(op.value) if isinstance(op, ew.Constant) else None


def _adds_constant(user: Op) -> bool:
    """Whether an op is a sum with a constant that is at least as large as erf and tanh are."""
    if not isinstance(user, ew.Add | ew.Sub):
        return False
    found = [_constant(v) for v in user.operands]
    return any(c is not None and abs(c) >= 1 for c in found)


def _scaled(value: Value) -> tuple[Value, float]:
    """(base, factor) of products with constants."""
    factor = 1.0
    while isinstance(op := value.defining_op, ew.Mul):
        found = [(v, c) for v, c in zip(op.operands, _constants_beside(op), strict=True) if c]
        if not found:
            break
        value, number = found[0]
        factor *= number
    return value, factor


def _constants_beside(product: ew.Mul) -> Iterator[float | None]:
    """For each operand what it is multiplied by, where that is a constant."""
    yield _constant(product.b)
    yield _constant(product.a)


def _fused(graph: TileGraph, total: Op, base: Value) -> list[ew.Fma]:
    """Rewrites h * (1 + z) as h * z + h where h is `base` times a positive number.

    z has the sign of h then, so that an infinite h gives the same.
    """
    made: list[ew.Fma] = []
    if not isinstance(total, ew.Add):
        return made
    one, z = total.operands if _constant(total.a) is not None else reversed(total.operands)
    if _constant(one) != 1:
        return made
    for use in list(graph.users(total.result)):
        product = use.op
        if not isinstance(product, ew.Mul):
            continue
        h = product.b if product.a is total.result else product.a
        found, factor = _scaled(h)
        if h is total.result or found is not base or factor <= 0 or h.type != z.type:
            continue
        new = ew.Fma(h, z, h, loc=product.loc)
        new.result.name = product.result.name
        graph.replace_op(product, new)
        made.append(new)
    return made


def _halve(graph: TileGraph, function: Op, base: Value, h: Op | None) -> int:
    """Makes h = base / 2 of halves where `base` is a sum with a repeated tile, and nothing else.

    function: of `base`, now of h. Products with powers of two are exact but for subnormal numbers.
    """
    total = base.defining_op
    if not isinstance(h, ew.Mul) or not isinstance(total, ew.Add) or h.parent is None:
        return 0
    assert isinstance(function, ew.Erf | ew.Tanh)
    factor = _scaled(h.result)[1]
    alive = [u.op for u in graph.users(base) if any(graph.has_uses(r) for r in u.op.results)]
    is_power = math.frexp(factor)[0] == 0.5
    scale = function.scale / factor
    if any(op is not h and op is not function for op in alive) or h.parent is not function.parent:
        return 0
    if not is_power or not _is_scale(scale) or not any(_repetition(v) for v in total.operands):
        return 0
    first = min(h, function, key=h.parent.ops.index)
    b = Builder(graph, h.parent, h.parent.ops.index(first), h.loc)
    left, right = (_times(b, graph, v, factor) for v in (total.a, total.b))
    half = b.value(ew.Add(left, right), h.result.name)
    graph.replace_uses(h.result, half)
    graph.replace_op(function, function.rebuild({base: half}, scale=scale))
    return 1


def _times(b: Builder, graph: TileGraph, value: Value, factor: float) -> Value:
    """value * factor, taken in by scalars; a thread multiplies what is repeated once."""
    shapes = _repetition(value)
    op = value.defining_op
    if shapes and isinstance(shapes[-1].operands[0].type, ScalarType):
        made = _times(b, graph, shapes[-1].operands[0], factor)
        for step in reversed(shapes):
            made = b.value(step.rebuild({step.operands[0]: made}))
        return made
    if isinstance(op, ew.Mul) and len(graph.users(value)) == 1:
        for x, other in ((op.a, op.b), (op.b, op.a)):
            if isinstance(other.defining_op, tile.Splat):
                return b.value(ew.Mul(x, _times(b, graph, other, factor)))
    number = b.value(ew.Constant(factor, float32))
    if isinstance(value.type, TileType):
        number = b.value(tile.Splat(number, value.type.shape))
    return b.value(ew.Mul(value, number))


def _repetition(value: Value) -> list[Op]:
    """The ops that repeat a smaller tile (or a scalar) to make this one, outermost first."""
    out: list[Op] = []
    while isinstance(op := value.defining_op, _SHAPES):
        out.append(op)
        value = op.operands[0]
    return out if any(isinstance(o, tile.Broadcast | tile.Splat) for o in out) else []
