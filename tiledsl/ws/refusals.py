"""Why launch options leave no plan of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.errors import ScheduleError
from tiledsl.target import Target
from tiledsl.ws.overrides import Overrides

if TYPE_CHECKING:
    from tiledsl.ws.kernel_shape import KernelShape


def no_stream(overrides: Overrides) -> ScheduleError:
    """Why nothing can be fetched ahead although all other options are legal."""
    return ScheduleError(
        f"launch options prefetch={overrides.prefetch}: no operand is read by one program "
        "alone while the other one is shared, so that there is no stream to fetch ahead of",
        hint="leave the option out, or give prefetch=0",
    )


def refusal(  # noqa: C901 - a case per reason
    shape: KernelShape, o: Overrides, target: Target, tiles: list[tuple[int, int, int]]
) -> ScheduleError:
    """Why the overrides leave no plan."""
    asked = ", ".join(f"{k}={v}" for k, v in o.given.items())
    why = "no legal plan has these values together"
    tile = "x".join(map(str, tiles[0])) if tiles else "?"
    if o.mma_depth is not None and o.num_stages is not None and o.mma_depth > o.num_stages:
        why = f"mma_depth={o.mma_depth} needs as many slots, num_stages is {o.num_stages}"
    elif shape.partial is not None and (o.mma_depth or 1) > 1:
        why = "the loop's products are added up outside of the tensor core, one group in flight"
    elif o.num_consumers is not None and not 1 <= o.num_consumers <= 3:
        why = f"num_consumers must be 1, 2 or 3, got {o.num_consumers}"
    elif o.ping_pong and o.persistent is False:
        why = "ping_pong needs persistent=True: each warpgroup walks over tiles of its own"
    elif not shape.top_level and (o.ping_pong or (o.split_k or 1) > 1 or (o.cluster or 1) > 1):
        why = "ping_pong, split_k and cluster need a dot loop that no loop or branch stands around"
    elif o.split_k not in (None, 1, 2, 4):
        why = f"split_k must be 1, 2 or 4, got {o.split_k}"
    elif (
        o.num_consumers
        and tiles
        and not o.ping_pong
        and all(m % (64 * o.num_consumers) and n % (8 * o.num_consumers) for m, n, _ in tiles)
    ):
        why = f"neither rows nor columns of a {tile} tile split over {o.num_consumers} warpgroups"
    elif o.ping_pong and shape.bound_axes:
        why = "ping_pong needs a trip count that does not depend on the program id"
    elif o.cluster not in (None, 1, 2, 4):
        why = f"cluster must be 1, 2 or 4, got {o.cluster}"
    elif o.cluster in (2, 4) and not (shape.operand_axes[0] ^ shape.operand_axes[1]) & {0, 1}:
        why = "no grid axis leaves one operand unchanged, so a cluster would share nothing"
    elif (o.cluster or o.split_k or 1) > 1 and not shape.in_blocks:
        why = (
            "a cluster also runs programs beyond the grid, and parts that other CTAs own: "
            "the kernel may then access tensors in blocks only, not through pointers or atomics"
        )
    elif (o.split_k or 1) > 1 and not shape.separable:
        why = "split_k needs an epilogue that works element by element"
    elif (o.split_k or 1) > 1 and not shape.sums_f32:
        why = "split_k adds up partial sums in f32 only"
    elif (o.split_k or 1) > 1 and not shape.zero_init:
        why = "split_k needs a loop that carries nothing but sums which start from zero"
    elif o.num_stages is not None:
        room = target.smem_bytes
        why = f"num_stages={o.num_stages} slots of a {tile} tile do not fit in {room} bytes"
    return ScheduleError(
        f"launch options {asked}: {why}", hint="leave the option out, or use a smaller tile"
    )
