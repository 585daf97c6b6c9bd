"""What shape ops do to layouts: where nothing has to move between threads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit

# Bank conflicts are avoided by permuting 16-byte chunks inside of lines.
LINE_BYTES = 128


def reshape_layout(layout: Layout, shape: Sequence[int], new_shape: Sequence[int]) -> Layout | None:
    """The layout of a row-major reshape under which no element moves, or None when there is none.

    The digits of all dimensions form one mixed-radix number; the new dimensions cut it at other
    places. A padded dimension may only be the outermost one that is not 1.
    """
    digits = _flat_digits(layout, shape)
    if digits is None:
        return None
    dims: list[tuple[Digit, ...]] = []
    left = [d for d in new_shape if d > 1]
    outermost = len(left)
    for n in reversed(new_shape):
        if n == 1:
            dims.append(())
            continue
        outermost -= 1
        taken = _take(digits, n, rest=outermost == 0)
        if taken is None:
            return None
        dims.append(taken)
    return Layout(tuple(reversed(dims)), layout.num_regs, layout.num_warps)


def _flat_digits(layout: Layout, shape: Sequence[int]) -> list[Digit] | None:
    """All digits from the least significant on; None where a padded dimension stands inside."""
    real = [d for d in range(len(shape)) if shape[d] > 1]
    for d in real[1:]:
        if layout.padded_shape[d] != shape[d]:
            return None
    return [g for d in reversed(real) for g in layout.dims[d] if g.size > 1]


def _take(digits: list[Digit], extent: int, *, rest: bool) -> tuple[Digit, ...] | None:
    """Removes digits of a dimension from the front; the outermost one takes the rest."""
    if rest:
        out = tuple(digits)
        digits.clear()
        return out if prod(d.size for d in out) >= extent else None
    out_list: list[Digit] = []
    while extent > 1:
        if not digits:
            return None
        d = digits.pop(0)
        if extent % d.size == 0:
            out_list.append(d)
            extent //= d.size
        elif d.size % extent == 0:
            out_list.append(Digit(extent, d.unit, d.stride))
            digits.insert(0, Digit(d.size // extent, d.unit, d.stride * extent))
            extent = 1
        else:
            return None
    return tuple(out_list)


def append_pair(layout: Layout) -> Layout:
    """A last dimension of extent 2 in registers: the registers of one tile, then of another."""
    pair = Digit(2, Unit.REG, layout.num_regs)
    return Layout((*layout.dims, (pair,)), 2 * layout.num_regs, layout.num_warps)


def without_last(layout: Layout) -> Layout | None:
    """The layout without its last dimension; None unless that lies in registers alone."""
    last = layout.rank - 1
    if any(d.unit is not Unit.REG for d in layout.dims[last] if d.size > 1):
        return None
    return layout.drop(last, keep=False)


def prepend(layout: Layout, extent: int) -> Layout:
    """A first dimension that lies in registers: the registers of one tile after the other."""
    digits = (Digit(extent, Unit.REG, layout.num_regs),) if extent > 1 else ()
    return Layout((digits, *layout.dims), extent * layout.num_regs, layout.num_warps)


def without_first(layout: Layout) -> Layout | None:
    """The layout without its first dimension; None unless that lies in registers alone."""
    if any(d.unit is not Unit.REG for d in layout.dims[0] if d.size > 1):
        return None
    return layout.drop(0, keep=False)


def is_padded(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether the digits span more than the tile."""
    return any(p > n for p, n in zip(layout.padded_shape, shape, strict=True))


def keeps_threads(source: Layout, target: Layout) -> bool:
    """Whether a conversion only renames registers."""
    try:
        target.reg_index_map(source, tuple(range(source.rank)))
    except ValueError:
        return False
    return True


def exchange_bytes(count: int, element_bytes: int) -> int:
    """Shared memory through which elements are exchanged: whole lines of 128 bytes."""
    return -(-count * element_bytes // LINE_BYTES) * LINE_BYTES
