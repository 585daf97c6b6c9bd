"""What the planner may know of the tensors that pointers turn out to be."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from math import prod

from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.specs import TensorView
from tiledsl.ir.specs import product_in
from tiledsl.ir.specs import spec_of
from tiledsl.ws.launch import Extents


def described(
    views: Iterable[TensorView], specs: Mapping[str, Spec], args: Mapping[str, object]
) -> tuple[dict[str, Spec], dict[str, object]]:
    """Specs and arguments with those of views."""
    found = {v.name: _described(v, specs, args) for v in views}
    return (
        {**specs, **{n: s for n, (s, _) in found.items()}},
        {**args, **{n: e for n, (_, e) in found.items()}},
    )


def _described(
    view: TensorView, specs: Mapping[str, Spec], args: Mapping[str, object]
) -> tuple[TensorSpec, Extents]:
    """What the planner may know of a view for the launch at hand."""

    def number(item: int | str) -> int:
        return product_in(item, lambda name: int(args[name]))  # type: ignore[call-overload]

    strides = tuple(number(s) for s in view.strides)
    known = [None if n is None else max(1, number(n)) for n in view.shape]
    shape = completed_extents(known, strides, elements_of(args[view.pointer]))
    pointer = specs[view.pointer]
    align = pointer.align_bytes if isinstance(pointer, PointerSpec | TensorSpec) else 1
    made = spec_of(view.dtype, shape, strides, ptr=align % TMA_ALIGN_BYTES)
    return made, Extents(shape, strides)


def elements_of(given: object) -> int:
    """Elements of what is given for a tensor or a pointer, 0 where that does not say."""
    if isinstance(given, Extents):
        return given.elements
    return int(getattr(given, "numel", int)())


def completed_extents(
    known: Sequence[int | None], strides: Sequence[int], elements: int
) -> tuple[int, ...]:
    """Extents of a view with those that a kernel does not check.

    Such a dimension ends where a step of the next larger stride leads, the outermost one with the
    `elements` of the memory that the view is of.
    """
    out = [n or 1 for n in known]
    unknown = sorted((d for d, n in enumerate(known) if n is None), key=lambda d: strides[d])
    width = piece_width(known, strides)
    for d in unknown:
        left = elements // prod(out)
        if d != unknown[-1]:
            larger = [s for s in strides if s > strides[d] > 0]
            larger += [s for s in strides[d + 1 :] if s == strides[d] == width]  # one piece
            left = min([left, *(s // strides[d] for s in larger)])
        out[d] = max(1, left)
    return tuple(out)


def piece_width(known: Sequence[int | str | None], strides: Sequence[int | str]) -> int:
    """The step between pieces of rows (`tiledsl.ws.box_lines`), if there are any; 0 otherwise.

    It is the extent within them. A row that is one piece is as far from the next one.
    """
    inner = (n for n, s in zip(known, strides, strict=True) if s == 1 and isinstance(n, int))
    return next(inner, 0)
