"""Candidates of a tuner that was given none: the plans that the cost model ranks first."""

from __future__ import annotations

from typing import Any

from tiledsl.call import GridLike
from tiledsl.config import Config
from tiledsl.ir.markers import Auto
from tiledsl.jit import JitFunction

MAX_CANDIDATES = 12
WARPS = (4, 8, 2, 16)


def candidates(
    kernel: JitFunction, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike
) -> list[Config]:
    """Configurations for a launch, the model's choice first.

    The first one leaves everything to the compiler. Those of a kernel with nothing to specialise
    differ in the number of warps.
    """
    from tiledsl.lowering import device_graph
    from tiledsl.ws.select import choose

    call, request = kernel.request_for(args, kwargs, grid)
    ranking = choose(request, device_graph)
    autos = [k for k, v in call.constants.items() if isinstance(v, Auto)]
    if not ranking.items or ranking.lower is None:
        chosen = {k: int(ranking.graph.constants[k]) for k in autos}
        return [Config(chosen, num_warps=n) for n in WARPS]
    found: dict[Config, None] = {Config({}): None}
    for item in ranking.items[1:]:
        if len(found) >= MAX_CANDIDATES:
            break
        constants = ranking.lower(item.tile).constants
        options = options_of(item.plan)
        asked = {k: v for k, v in options.items() if getattr(call.overrides, k) is None}
        found[Config({k: int(constants[k]) for k in autos}, **asked)] = None
    return list(found)


def options_of(plan: Any) -> dict[str, Any]:
    """Launch options that lead to a plan."""
    out: dict[str, Any] = {
        "num_consumers": plan.num_consumers,
        "ping_pong": plan.ping_pong,
        "persistent": plan.persistent,
        "mma_depth": plan.mma_depth,
        "split_k": plan.split_k,
        "swap_operands": plan.swapped,
    }
    return out if plan.split_k > 1 else {**out, "cluster": plan.cluster_size}
