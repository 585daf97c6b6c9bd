"""Obligations that need no run: layout of shared memory, set-up, the end of clusters."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.ws.check_state import Fault

MBARRIER_BYTES = 8


def check_objects(graph: TileGraph) -> None:
    """Raises Fault for the first obligation that does not hold."""
    ops = graph.body.ops
    check_overlap(ops)
    check_setup(ops, int(graph.facts.get("cluster_size", 1)))
    check_cluster(graph)


def check_overlap(ops: list[Op]) -> None:
    """Buffers and mbarriers lie apart.

    Scratch of ops that exchange data between threads may share a buffer among themselves: the ops
    bring their own barriers.
    """
    spans: list[tuple[int, int, Op]] = []
    for op in ops:
        if isinstance(op, smem.Buffer):
            spans.append((op.offset_bytes, op.offset_bytes + op.slots * op.type_.bytes, op))
        elif isinstance(op, barrier.MbarrierArray):
            spans.append((op.offset_bytes, op.offset_bytes + MBARRIER_BYTES * op.depth, op))
    spans.sort(key=lambda s: s[:2])
    end, last = 0, None
    for lo, hi, op in spans:
        if lo < end and not (is_scratch(op) and is_scratch(last)):
            name = op.results[0].name
            other = last.results[0].name if last is not None else ""
            raise Fault("memory", f"{name} lies at byte {lo}, where {other} ends at {end}", op)
        if hi > end:
            end, last = hi, op


def is_scratch(op: Op | None) -> bool:
    """Whether a buffer is the scratch of ops that exchange data between threads."""
    return op is not None and op.results[0].name == "scratch"


def check_setup(ops: list[Op], cluster_size: int) -> None:
    """One thread initialises each mbarrier once and fences; a role starts after that."""
    setup = next((i for i, o in enumerate(ops) if isinstance(o, Setup)), -1)
    first = next((i for i, o in enumerate(ops) if isinstance(o, Role)), len(ops))
    arrays = {o.result for o in ops if isinstance(o, barrier.MbarrierArray)}
    if not arrays:
        return
    made: set[Value] = set()
    fenced = False
    for op in ops[setup].regions[0].ops if setup >= 0 else []:
        if isinstance(op, barrier.MbarrierInit):
            if op.barriers in made:
                raise Fault("balance", f"{op.barriers.name} is initialised twice", op)
            made.add(op.barriers)
        fenced = isinstance(op, barrier.InitFence) or (
            fenced and not isinstance(op, barrier.MbarrierInit | barrier.ExpectAll)
        )
    for array in arrays - made:
        raise Fault("balance", f"{array.name} is never initialised", array.defining_op)
    if not fenced:
        raise Fault("fences", "no fence after the initialisation of the mbarriers", ops[setup])
    wanted = barrier.ClusterSync if cluster_size > 1 else (barrier.CtaSync, barrier.ClusterSync)
    if not any(isinstance(o, wanted) for o in ops[setup + 1 : first]):
        raise Fault("liveness", "roles start before the mbarriers are initialised", ops[setup])


def check_cluster(graph: TileGraph) -> None:
    """No CTA may leave while another one can still signal or write to it."""
    if int(graph.facts.get("cluster_size", 1)) == 1:
        return
    remote = [o for o in graph.find(barrier.Arrive) if o.cluster_size > 1]
    copies = [o for o in graph.find(tma.Load) if o.mask is not None]
    shared: list[Op] = [*remote, *copies, *graph.find(mma.ClusterReduce)]
    if shared and not isinstance(graph.body.ops[-1], barrier.ClusterSync):
        raise Fault("cluster", "a CTA may leave while another one still signals it", shared[0])
