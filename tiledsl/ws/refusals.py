"""Why launch options leave no plan of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.ws.analysis import NO_DOT
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan

if TYPE_CHECKING:
    from tiledsl.ws.analysis import Declined
    from tiledsl.ws.kernel_shape import KernelShape

Tile = tuple[int, int, int]

BY_OPTIONS = "launch options"
"""What is declined (`Declined.what`) where the kernel has a plan without its launch options."""
MOST_COLUMNS = 256
"""Columns of a tile that one warpgroup takes."""
MOST_REGISTERS = 200
"""Of a thread for sums: what is left of 255 holds addresses and what the epilogue computes."""
_LIMIT = f"{MOST_REGISTERS} are there"
MOST_GROUPS = 8
"""wgmma groups in flight, the newest included. Ref: PTX ISA, wgmma.wait_group takes 0 to 7."""
ATOM_ROWS, ATOM_COLUMNS = 64, 8
"""Rows of an instruction, and what its columns are a multiple of."""


def note_failure(failures: list[str], error: TileError) -> None:
    """Notes why a plan was given up, once for all plans with the same fault."""
    at = f" ({error.loc.short})" if error.loc else ""
    line = f"plan given up: {error.message}{at}"
    if line not in failures:
        failures.append(line)


def no_stream(overrides: Overrides) -> ScheduleError:
    """Why nothing can be fetched ahead although all other options are legal."""
    return ScheduleError(
        f"launch options prefetch={overrides.prefetch}: no operand is read by one program "
        "alone while the other one is shared, so that there is no stream to fetch ahead of",
        hint="leave the option out, or give prefetch=0",
    )


def other_slots(overrides: Overrides, depth: int) -> list[str]:
    """The note on a ring that is not as deep as was asked for.

    depth: of the ring between roles.
    """
    asked = overrides.num_stages
    if asked == 1:
        why = "roles that share one slot cannot overlap"
        return [f"num_stages=1 leaves the depth to the compiler: {why}"]
    if asked is not None and asked > depth:
        return [f"num_stages={asked}: {depth} slots fit and are used"]
    if asked is not None and asked < depth:
        beside = f"num_stages={asked} beside num_warps={overrides.num_warps}"
        return [f"{beside} is of one of several programs on an SM: {depth} slots"]
    return []


def not_specialised(
    overrides: Overrides, declined: Sequence[Declined], failures: Sequence[str]
) -> ScheduleError:
    """The error for options that only roles can give, of a kernel that has none."""
    asked = overrides.structure
    if overrides.warp_specialize is False:
        return ScheduleError(
            f"launch options {_pairs(asked)}: for specialised kernels only, and "
            "warp_specialize=False asks for a single role",
            hint=f"leave out either {', '.join(asked)} or warp_specialize=False",
        )
    reasons = [  # The place of the first one is that of the error.
        f"{d.reason} ({d.loc.short})" if d.loc and i else d.reason for i, d in enumerate(declined)
    ]
    by_options = any(d.what == BY_OPTIONS for d in declined)
    why = "; ".join(dict.fromkeys([*reasons, *failures])) or "no plan fits"
    return ScheduleError(
        f"launch options {_pairs(asked)}: {why}",
        declined[0].loc if declined else None,
        f"leave {_them(asked)} out" + ("" if by_options else " to run the kernel in a single role"),
    )


def illegal(o: Overrides) -> ScheduleError | None:
    """The error for values that no kernel takes, or None."""
    for why, hint in _of_values(o):
        return ScheduleError(f"launch options {_pairs(o.given)}: {why}", hint=hint)
    return None


def never_honoured(o: Overrides, *, has_dot: bool) -> ScheduleError | None:
    """The error for options that no plan of a kernel has, whatever its tiles; or None.

    The interpreter refuses these too; what depends on registers and shared memory it does not know.
    """
    if o.structural and not has_dot:
        return not_specialised(o, (), (NO_DOT,))
    if o.structural and o.warp_specialize is False:
        return not_specialised(o, (), ())
    return illegal(o)


def refusal(
    shape: KernelShape, o: Overrides, tiles: list[Tile], has_plans: Callable[[Overrides], bool]
) -> ScheduleError:
    """Why the overrides leave no plan of a kernel that has plans without them.

    has_plans: whether the kernel has plans with other overrides.
    """
    for why, hint in _of_kernel(shape, o, tiles):
        return ScheduleError(f"launch options {_pairs(o.given)}: {why}", hint=hint)
    names = "the option"
    if len(o.given) == 1:
        why = _of_room(shape, o, tiles)
    else:
        why = "no legal plan has these values together"
        culprits = [name for name in o.given if has_plans(replace(o, **{name: None}))]
        names = " or ".join(culprits) or "the options"
        why += f"; without {names} there is one" if culprits else ""
    return ScheduleError(
        f"launch options {_pairs(o.given)}: {why}", hint=f"leave {names} out, or use another tile"
    )


def no_tile(shape: KernelShape, o: Overrides, tiles: list[Tile]) -> ScheduleError:
    """Why no plan of any options has one of these tiles."""
    why, hint = _of_tile(shape, tiles[0]) if tiles else ("there is no tile", "use another tile")
    return ScheduleError(
        f"launch options {_pairs(o.structure)}: a specialised kernel cannot have this tile: {why}",
        hint=f"{hint}, or leave {_them(o.structure)} out to run the kernel in a single role",
    )


def _pairs(options: dict[str, object]) -> str:
    return ", ".join(f"{k}={v}" for k, v in options.items())


def _them(options: dict[str, object]) -> str:
    return "the option" if len(options) == 1 else "the options"


def _of_values(o: Overrides) -> Iterator[tuple[str, str]]:
    """(reason, hint) of values that no kernel takes."""
    if o.mma_depth is not None and o.mma_depth > MOST_GROUPS:
        why = f"mma_depth must be at most {MOST_GROUPS}, got {o.mma_depth}: a wait leaves at most"
        why += f" {MOST_GROUPS - 1} wgmma groups in flight"
        yield why, f"give 1 to {MOST_GROUPS}, or leave the option out"
    most = o.slots if o.num_warps is None else None
    if o.mma_depth is not None and most is not None and o.mma_depth > most:
        why = f"mma_depth={o.mma_depth} needs as many slots, num_stages is {most}"
        hint = f"give an mma_depth of 1 to {most}, or a num_stages of {o.mma_depth} and more"
        yield why, hint
    legal = {"num_consumers": (1, 2, 3), "split_k": (1, 2, 4), "cluster": (1, 2, 4)}
    for name, values in legal.items():
        got = getattr(o, name)
        if got is not None and got not in values:
            listed = f"{values[0]}, {values[1]} or {values[2]}"
            yield f"{name} must be {listed}, got {got}", f"give {listed}, or leave the option out"
    if o.ping_pong and o.persistent is False:
        why = "ping_pong needs persistent=True: each warpgroup walks over tiles of its own"
        yield why, "leave one of the two options out"


def _of_kernel(shape: KernelShape, o: Overrides, tiles: list[Tile]) -> Iterator[tuple[str, str]]:
    """(reason, hint) of options that this kernel does not take."""
    leave = "leave the option out"
    many = (o.cluster or o.split_k or 1) > 1
    splits = (o.split_k or 1) > 1
    if shape.partial is not None and (o.mma_depth or 1) > 1:
        why = "the loop's products are added up outside of the tensor core, those of one iteration "
        why += "at a time, or of two (mma_depth=2) where one warpgroup has a product in each"
        yield why, f"{leave}, or give mma_depth=1"
    if not shape.top_level and (o.ping_pong or splits or (o.cluster or 1) > 1):
        why = "ping_pong, split_k and cluster need a dot loop that no loop or branch stands around"
        yield why, leave
    n = o.num_consumers
    if n and tiles and not o.ping_pong and not any(_parts(t, n) for t in tiles):
        tile = "x".join(map(str, tiles[0]))
        why = f"neither rows nor columns of a {tile} tile split over {n} warpgroups"
        yield why, f"{leave}, or use a tile of rows that are a multiple of {ATOM_ROWS * n}"
    if o.ping_pong and shape.bound_axes:
        yield "ping_pong needs a trip count that does not depend on the program id", leave
    if o.cluster in (2, 4) and not (shape.operand_axes[0] ^ shape.operand_axes[1]) & {0, 1}:
        yield "no grid axis leaves one operand unchanged, so a cluster would share nothing", leave
    if many and not shape.in_blocks:
        yield (
            "a cluster also runs programs beyond the grid, and parts that other CTAs own: "
            "the kernel may then access tensors in blocks only, not through pointers or atomics",
            leave,
        )
    if splits and not shape.separable:
        yield "split_k needs an epilogue that works element by element", leave
    if splits and not shape.sums_f32:
        yield "split_k adds up partial sums in f32 only", leave
    if splits and not shape.zero_init:
        yield "split_k needs a loop that carries nothing but sums which start from zero", leave


def _of_room(shape: KernelShape, o: Overrides, tiles: list[Tile]) -> str:
    """What does not hold the smallest tile in the structure that an option asks for."""
    tile = min(tiles, key=lambda t: t[0] * t[1])
    name = "x".join(map(str, tile))
    parted = o.num_consumers or 2
    split = 0 if tile[0] % (ATOM_ROWS * parted) == 0 else 1
    regs = shape.sum_regs(
        Plan(num_consumers=parted, split=split, ping_pong=bool(o.ping_pong)), tile
    )
    if regs > MOST_REGISTERS:
        return f"the sums of a {name} tile take {regs} registers of a thread then, {_LIMIT}"
    return f"registers or shared memory do not hold a {name} tile then"


def _parts(tile: Tile, consumers: int) -> bool:
    """Whether a tile splits over warpgroups by its rows or its columns."""
    return tile[0] % (ATOM_ROWS * consumers) == 0 or tile[1] % (ATOM_COLUMNS * consumers) == 0


def _of_tile(shape: KernelShape, tile: Tile) -> tuple[str, str]:
    """(reason, hint) of a tile that no plan can have."""
    M, N, _ = tile
    name = "x".join(map(str, tile))
    atoms = f"{ATOM_ROWS} rows and a multiple of {ATOM_COLUMNS} columns"
    turned = not shape.row_sums and N % ATOM_ROWS == 0 and M % ATOM_COLUMNS == 0
    if not turned and M % ATOM_ROWS:
        why = f"M={M} of the {name} tile is no multiple of {ATOM_ROWS}; the instruction takes"
        return f"{why} {atoms}", "use rows that are a multiple of 64"
    if not turned and N % ATOM_COLUMNS:
        why = f"N={N} of the {name} tile is no multiple of {ATOM_COLUMNS}; the instruction takes"
        return f"{why} {atoms}", "use columns that are a multiple of 8"
    if N > MOST_COLUMNS and M % ATOM_ROWS == 0:
        return f"N={N} is more than the {MOST_COLUMNS} columns of a warpgroup", "use a smaller tile"
    alone = Plan(num_consumers=2, split=0 if M % (2 * ATOM_ROWS) == 0 else 1)
    regs = shape.sum_regs(alone, tile)
    if regs > MOST_REGISTERS:
        why = f"the sums of a {name} tile take {regs} registers of a thread of two warpgroups"
        return f"{why}, {_LIMIT}", "use a smaller tile"
    return f"registers and shared memory do not hold a {name} tile", "use a smaller tile"
