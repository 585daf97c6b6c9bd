"""Debug builds: waits that are given up, with a number for each, and random delays.

Named barriers of the hardware cannot be given up, so a debug build has an mbarrier for each. Loops
whose end is told through a channel are left by all warps of an instance together.
"""

from __future__ import annotations

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Watch
from tiledsl.codegen.module import Site
from tiledsl.errors import CodegenError
from tiledsl.errors import ResourceError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.ops.barrier import NamedArrive
from tiledsl.ir.ops.barrier import NamedSync
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.ir.types import HandleType
from tiledsl.target import Target

__all__ = [
    "assert_number",
    "delays",
    "leave_condition",
    "number",
    "role_registers",
    "vote_address",
    "watch_end",
    "watch_of",
    "watch_start",
]

MBARRIER_BYTES = 8
VOTES = 8
"""Instances of roles that can have a loop to leave, at most."""
LAST_BARRIER = 15
FEW_REGISTERS = 56
"""What a role needs to wait with a limit and tell of it."""
WARP_THREADS = 32


def watch_of(graph: TileGraph, target: Target) -> Watch:
    """What a debug build of a graph adds to shared memory.

    Raises:
        ResourceError: there is no room for it.
    """
    roles = [op for op in graph.body.ops if isinstance(op, Role)]
    warps: dict[int, int] = {}
    for op in graph.walk():
        if isinstance(op, NamedSync | NamedArrive):
            count = 1 if op.index is None else max(r.num_warpgroups for r in roles)
            for i in range(op.base, min(op.base + count, LAST_BARRIER + 1)):
                warps[i] = op.num_threads // WARP_THREADS
    start = -(-int(graph.facts.get("smem_bytes", 0)) // MBARRIER_BYTES) * MBARRIER_BYTES
    end = start + MBARRIER_BYTES * (LAST_BARRIER + 1) + 4 * VOTES if roles else start
    if end > target.smem_bytes:
        raise ResourceError(
            f"debug: needs {end} bytes of shared memory, a CTA has {target.smem_bytes}",
            hint="a smaller num_stages leaves room",
        )
    return Watch(start, end, dict(sorted(warps.items())))


def number(op: Op, e: Emission, name: str) -> str:
    """The number of a place where a role waits; name: of the barriers, such as `a_b_full`."""
    assert e.watch is not None
    channel, _, kind = name.rpartition("_")
    handle = op.operands[0].type if op.operands else None
    depth = handle.depth if isinstance(handle, HandleType) else 1
    e.watch.sites.append(Site(e.place.name, kind, channel, depth, op.loc))
    return str(len(e.watch.sites))


def assert_number(op: Op, message: str, e: Emission) -> str:
    """The number of an assertion."""
    if e.watch is None:
        raise CodegenError("assertions are of debug builds")
    e.watch.sites.append(Site(e.place.name, "assert", message, 1, op.loc))
    return str(len(e.watch.sites))


def vote_address() -> str:
    """Address of the flag by which the whole block takes part in a decision."""
    return f"watched + {MBARRIER_BYTES * (LAST_BARRIER + 1)}"


def role_registers(op: Role, e: Emission) -> int:
    """The register budget of a role; in a debug build the small ones grow at the others' cost."""
    if e.watch is None or not op.registers or op.parent is None:
        return op.registers
    roles = [r for r in op.parent.ops if isinstance(r, Role) and r.registers]
    few = [r for r in roles if not r.grow]
    if not op.grow:
        return max(op.registers, FEW_REGISTERS)
    total = sum(r.registers * r.num_warpgroups for r in roles)
    taken = sum(max(r.registers, FEW_REGISTERS) * r.num_warpgroups for r in few)
    return (total - taken) // sum(r.num_warpgroups for r in roles if r.grow) // 8 * 8


def watch_start(e: Emission) -> str:
    """Statements at the start of the kernel."""
    lines: list[str] = []
    if e.build.delay:
        lines.append(f"Jitter jitter({e.build.delay}u);")
    if e.watch is not None and e.watch.end_bytes > e.watch.start_bytes:
        votes = MBARRIER_BYTES * (LAST_BARRIER + 1)
        lines.append(f"const u32 watched = smem_base + {e.watch.start_bytes};")
        lines.append("if (threadIdx.x == 0) {")
        lines += [
            f"  mbarrier_init(watched + {MBARRIER_BYTES * i}, {n});"
            for i, n in e.watch.named_warps.items()
        ]
        lines.append(
            f"  for (u32 i = 0; i < {VOTES}; ++i) st_shared<u32>(watched + {votes} + 4 * i, 0u);"
        )
        lines += ["  mbarrier_init_fence();", "}", "NamedBarriers named_barriers(watched);"]
        if not e.graph.find(Setup):
            lines.append("block_sync();")
    return "".join(f"{line}\n" for line in lines)


def watch_end(e: Emission) -> str:
    """Statements at the end of the kernel."""
    return "settle();\n" if e.watch is not None else ""


def leave_condition(e: Emission) -> str:
    """When a loop is left because a wait was given up; empty where that cannot be."""
    place = e.place
    if e.watch is None or not place.name:
        return ""
    if place.is_single:
        return "has_stalled()"
    first, votes = place.first_warpgroup, MBARRIER_BYTES * (LAST_BARRIER + 1)
    vote, barrier = f"watched + {votes + 4 * first}", f"{LAST_BARRIER - first}"
    if place.groups != place.num_warpgroups:
        index = e.group_index if place.groups == 1 else f"{e.group_index} / {place.groups}"
        vote, barrier = f"{vote} + 4 * ({index})", f"{barrier} - {index}"
    return f"leave_together({vote}, {barrier}, {WARP_THREADS * place.num_warps})"


def delays(op: Op, e: Emission) -> str:
    """The delay before an op of a role that waits, signals or starts asynchronous work."""
    if not e.build.delay or not e.place.name or op.effect is not Effect.SYNC:
        return ""
    made = [r.type for r in op.results]
    if any(isinstance(t, HandleType) for t in made) or op.opcode in QUIET:
        return ""
    return "jitter.pause();\n"


QUIET = frozenset(
    {"barrier.next", "barrier.skip", "smem.slot", "mma.issue", "mma.commit", "mma.pin"}
)
"""Ops that nobody can see happen; a wgmma begins with its fence."""
