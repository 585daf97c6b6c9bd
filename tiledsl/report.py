"""The report of a compiled kernel, as text."""

from __future__ import annotations

from tiledsl.compiled import Kernel
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import Buffer
from tiledsl.ir.ops.smem import Slot
from tiledsl.ir.ops.smem import View
from tiledsl.ir.ops.tma import Load
from tiledsl.ws.plan import Plan
from tiledsl.ws.search_role import SEARCH
from tiledsl.ws.slot_vectors import slot_vectors


def render_report(kernel: Kernel, remark: str = "") -> str:
    """What the compiler decided and expects, and what it declined, with reason and line.

    remark: what to know before all that. The text ends with a newline, as that of `cuda` does.
    """
    module, plan = kernel.module, kernel.plan
    lines = [
        f"kernel {module.name}",
        *([f"remark: {remark}"] if remark else []),
        f"constexprs: {_pairs(kernel.constants)}",
        f"plan: {plan.describe()}",
    ]
    units = (128, "warpgroups") if isinstance(plan, Plan) else (32, "warps")
    lines.append(f"threads: {module.num_threads} ({module.num_threads // units[0]} {units[1]})")
    if isinstance(plan, Plan):
        channels = _channels(kernel, plan)
        roles = {r.name for r in kernel.machine.find(Role)} if kernel.machine else set[str]()
        lines += ["roles:", *_roles(plan, roles, loads=bool(channels))]
        lines += ["channels:", *(channels or ["  none: no operand of a dot comes through TMA"])]
    if kernel.cost is not None:
        c = kernel.cost
        lines.append(
            f"expected: {c.us:.1f} us, bound by {c.bottleneck}, {c.waves} wave(s) of tiles"
        )
    elif isinstance(plan, Plan):
        lines.append("expected: clocks an iteration, with the schedule of each loop in the notes")
    lines += ["shared memory:", kernel.smem.table()]
    if kernel.compiled is not None:
        c = kernel.compiled
        lines.append(f"registers: {c.registers} a thread at launch, {c.spill_bytes} bytes spilled")
        lines += [f"  {line}" for line in c.notes]
    lines.append(f"compile: {kernel.python_seconds * 1e3:.0f} ms Python" + _nvrtc(kernel))
    if kernel.certificate is not None:
        lines += ["proof:", *(f"  {line}" for line in kernel.certificate.render())]
    if kernel.declined:
        lines += ["declined:", *(f"  {d}" for d in kernel.declined)]
    if kernel.notes:
        lines += ["notes:", *(f"  {n}" for n in kernel.notes)]
    return "\n".join(lines) + "\n"


def _pairs(values: dict[str, object]) -> str:
    return ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in values.items()) or "none"


def _nvrtc(kernel: Kernel) -> str:
    return f", {kernel.compiled.seconds * 1e3:.0f} ms NVRTC" if kernel.compiled is not None else ""


def _roles(plan: Plan, roles: set[str], *, loads: bool) -> list[str]:
    limit = f", setmaxnreg {plan.producer_registers}" if plan.producer_registers else ""
    task = "issues the loads" if loads else "draws the tiles, nothing is loaded for the consumers"
    who = "its threads copy, one" if plan.copies else "one thread"
    out = [f"  producer: warpgroup 0, {who} {task}{limit}"]
    if plan.epilogue_slots:
        out.append("  epilogue loads: warpgroup 0, a thread of another warp, in chunks")
    if SEARCH in roles:
        out.append("  search: warpgroup 0, a thread of another warp finds the numbers of tiles")
    last = plan.num_consumers
    how = "one tile each, in turn" if plan.ping_pong else "one tile together"
    limit = f", setmaxnreg {plan.consumer_registers}" if plan.consumer_registers else ""
    out.append(f"  consumer: warpgroups 1..{last}, {how}{limit}")
    return out


def _channels(kernel: Kernel, plan: Plan) -> list[str]:
    """A line for each channel: what it holds, and what loads or reads it."""
    if kernel.analysis is None:
        return [] if kernel.machine is None else _rings(kernel.machine)
    buffers: list[Buffer] = kernel.machine.find(Buffer) if kernel.machine else []
    slots = {b.result.name: b.slots for b in buffers}
    out: list[str] = []
    for found in kernel.analysis.loops:
        loads = (*found.loads, *slot_vectors(found))
        names = ", ".join(
            f"{o.name} {'x'.join(map(str, o.smem.shape))}{' copied by threads' * o.is_copied}"
            for o in loads
        )
        size = sum(o.smem.bytes for o in loads)
        at = found.loop.loc.short if found.loop.loc else "?"
        depths = {slots.get(f"{o.name}_ring", plan.num_stages) for o in loads}
        depth = " and ".join(map(str, sorted(depths, reverse=True)))
        out.append(
            f"  ({names}): {size} bytes a slot, depth {depth}; feeds the dot(s) of the loop at {at}"
        )
    return out


def _rings(graph: TileGraph) -> list[str]:
    """The rings that copies fill, with what they hold and the lines that load it."""
    places: dict[Buffer, list[str]] = {}
    for op in graph.find(Load):
        source = op.smem.defining_op
        while isinstance(source, View):
            source = source.a.defining_op
        buffer = source.buffer.defining_op if isinstance(source, Slot) else source
        if isinstance(buffer, Buffer):
            places.setdefault(buffer, []).append(op.loc.short if op.loc else "?")
    out: list[str] = []
    for buffer, lines in places.items():
        name, held = buffer.result.name.removesuffix("_ring"), buffer.type_
        shape = "x".join(map(str, held.shape))
        at = ", ".join(dict.fromkeys(lines))
        out.append(
            f"  ({name} {shape}): {held.bytes} bytes a slot, depth {buffer.slots}; loaded at {at}"
        )
    return out
