"""Plans whose buffers turn out not to fit: fewer slots and buffers, before the plan is given up.

Planners price hundreds of plans with what they know of a kernel's loops and stores. Sibling loops
with other tiles, and stores that are staged otherwise than the first one, take what they did not
count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from typing import TypeVar

from tiledsl.errors import ResourceError
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised


class Noted(Protocol):
    """A kernel: what is made of a plan."""

    notes: list[str]


Made = TypeVar("Made", bound=Noted)


def fitted(make: Callable[[Plan], Made], plan: Plan) -> Made:
    """The kernel of a plan, or of one with as many slots and buffers as fit, which a note names.

    make: lowers a plan; raises ResourceError where its buffers do not fit.

    Raises:
        ResourceError: they fit with no number of slots, or it is something else.
    """
    try:
        return make(plan)
    except ResourceError as error:
        first = error
    small = revised(plan, outer_stages=1, store_buffers=1)
    found = _deepest(make, small)
    if found is None:
        raise first
    depth, made = found
    for more in ({"store_buffers": plan.store_buffers}, {"outer_stages": plan.outer_stages}):
        wider = revised(small, num_stages=depth, **more)
        if wider == revised(small, num_stages=depth):
            continue
        try:
            made = make(wider)
        except ResourceError:
            continue
        small = wider
    made.notes.append(_note(plan, revised(small, num_stages=depth)))
    return made


def _deepest(make: Callable[[Plan], Made], plan: Plan) -> tuple[int, Made] | None:
    """The most slots that fit, and what is made with them."""
    low, high, best = max(1, plan.mma_depth), plan.num_stages, None
    while low <= high:
        depth = (low + high) // 2
        try:
            best = depth, make(revised(plan, num_stages=depth))
        except ResourceError:
            high = depth - 1
        else:
            low = depth + 1
    return best


def _note(plan: Plan, less: Plan) -> str:
    names = {
        "num_stages": "slots of a ring",
        "outer_stages": "slots of what is loaded before a loop",
        "store_buffers": "buffers of a store",
    }
    cut = [
        f"{getattr(less, name)} for {getattr(plan, name)} {what}"
        for name, what in names.items()
        if getattr(less, name) != getattr(plan, name)
    ]
    return f"shared memory holds {', '.join(cut)}"
