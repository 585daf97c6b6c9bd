"""The start of a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.ir.ops import cluster as ops


@dataclass(frozen=True)
class StartContext:
    """A call without arguments."""


@emits("cluster.arrive", "cluster.wait")
def start(op: ops.Arrive | ops.Wait, e: Emission) -> StartContext:
    """`cluster_arrive_relaxed();`, `cluster_wait();`."""
    del op, e
    return StartContext()
