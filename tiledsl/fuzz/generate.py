"""Draws the case of a seed and a number; the same in every process."""

from __future__ import annotations

import random
from collections.abc import Callable

from tiledsl.fuzz.case import Case
from tiledsl.fuzz.draft import Draft
from tiledsl.fuzz.flows import draw_chain
from tiledsl.fuzz.flows import draw_flow
from tiledsl.fuzz.groups import draw_lists
from tiledsl.fuzz.groups import draw_scaled
from tiledsl.fuzz.long_rows import draw_long_rows
from tiledsl.fuzz.products import draw_pointers
from tiledsl.fuzz.products import draw_products
from tiledsl.fuzz.rows import draw_rows

FAMILIES: dict[str, tuple[int, Callable[[Draft], None]]] = {
    "products": (9, draw_products),
    "pointers": (4, draw_pointers),
    "flow": (4, draw_flow),
    "chain": (1, draw_chain),
    "scaled": (1, draw_scaled),
    "lists": (1, draw_lists),
    "rows": (2, draw_rows),
    "long_rows": (2, draw_long_rows),
}
"""Kinds of kernels with their weight."""


def generate(seed: int, number: int, only: str = "") -> Case:
    """A case.

    only: a family, or a text that the kernel or its options have to contain; draws are repeated.
    """
    for attempt in range(1000):
        rng = random.Random(f"{seed}/{number}/{attempt}")
        weights = [w for w, _ in FAMILIES.values()]
        family = only if only in FAMILIES else rng.choices(list(FAMILIES), weights)[0]
        draft = Draft(rng, family)
        FAMILIES[family][1](draft)
        made = draft.finish(f"{seed}-{number}", rng.randrange(1 << 30))
        if not only or family == only or only in made.source or only in made.options:
            return made
    raise ValueError(f"no kernel with {only!r} was drawn")
