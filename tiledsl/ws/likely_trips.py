"""How often a loop runs in the launch that a kernel is compiled for, where its numbers say so.

Programs with dots are compiled anew for other extents, integers and grids; the loop runs as often
as it must all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import ScalarType

FACT = "launched"
"""The graph's fact that holds a `Launched`."""


@dataclass(frozen=True)
class Launched:
    """A launch: values of arguments by name, and the grid."""

    args: Mapping[str, Any]
    grid: tuple[int, int, int]


def likely_trips(graph: TileGraph, loop: For) -> int:
    """Iterations of a loop in the program in the middle of the grid; 0 where that is not known."""
    launched = graph.facts.get(FACT)
    if not isinstance(launched, Launched) or not all(launched.grid):
        return 0
    args = {a: launched.args[a.name] for a in graph.args if a.name in launched.args}
    for arg, given in args.items():
        if isinstance(arg.type, ScalarType) and not arg.type.dtype.is_pointer:
            args[arg] = np.asarray(given, arg.type.dtype.numpy)
    x, y, z = launched.grid
    values = HostValues(args, launched.grid, (x // 2, y // 2, z // 2))
    try:
        low, high, step = (int(values.get(v)) for v in (loop.lower, loop.upper, loop.step))
    except (Unknown, KeyError, AttributeError, TypeError, ValueError):
        return 0
    return len(range(low, high, step)) if step > 0 else 0
