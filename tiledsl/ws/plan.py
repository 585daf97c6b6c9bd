"""The plan of a specialised kernel: every decision, frozen, printable."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from tiledsl.ws.analysis import Declined
from tiledsl.ws.overrides import Overrides

__all__ = ["Overrides", "Plan", "Schedule", "revised"]


@dataclass(frozen=True)
class Plan:
    """Decisions about one kernel.

    num_stages: slots of the ring (D).  mma_depth: wgmma groups in flight (P).
    num_consumers: consumer warpgroups; ping_pong: each has a tile of its own, else they share one
    by `split` (0 rows, 1 columns of the accumulator).  swapped: the tensor core computes the
    transposed product.
    persistent: one CTA (cluster) per SM walks over tiles in groups of `raster_group` along
    `group_axis`, in the order of the grid where that is 0.
    cluster_size CTAs side by side along grid axis `cluster_axis` multicast what they
    share; with split_k > 1 they
    share one tile and split its loop instead.
    turns: warpgroups that share a tile issue their products one after the other.
    skips_ones: a warp leaves a sum alone where all its factors are one.
    dynamic: the load role draws tiles from a counter at run time instead of walking in steps.
    uneven: programs may take different times, so that a tile is drawn as late as its loads allow.
    longest_first: grid axis along which programs take longer, visited from its end, -1 for none.
    outer_stages: slots of a channel whose load stands before the loop.
    unit_axes: grid axes of extent 1, where that makes an operand be read only once (L2 hints).
    pdl: the prologue overlaps the kernel before (programmatic dependent launch).
    prefetch: iterations of a CTA's first tile whose streamed boxes are fetched into L2 before the
    kernel before has ended, 0 for none.
    prefetch_programs: programs of a grid that do so, the first ones; 0 for all.
    in_place: the results of an epilogue take the place of the accumulators, chunk by chunk.
    deferred: the result of a tile is stored under the first slots of the next tile's loop.
    epilogue_slots: chunks of tiles that only the epilogue reads, in the ring of a role that loads
    them; 0 where the consumers load them. epilogue_pause: clocks, for an iteration of the loop, for
    which it stands still before each that it loads ahead.
    copies: the threads of the load role copy an operand that no tensor map loads.
    store_buffers: staging buffers of 128 bytes by the warpgroup's rows, per warpgroup.
    producer_registers, consumer_registers: setmaxnreg values, 0 for none.
    """

    num_stages: int = 4
    mma_depth: int = 1
    num_consumers: int = 2
    ping_pong: bool = False
    turns: bool = False
    skips_ones: bool = False
    split: int = 0
    swapped: bool = False
    persistent: bool = True
    raster_group: int = 8
    group_axis: int = 0
    cluster_axis: int = -1
    cluster_size: int = 1
    split_k: int = 1
    deferred: bool = False
    in_place: bool = False
    epilogue_slots: int = 0
    epilogue_pause: int = 0
    store_buffers: int = 2
    producer_registers: int = 40
    consumer_registers: int = 232
    copies: bool = False
    ctas_per_sm: int = 1
    l2_promotion_bytes: int = 256
    outer_stages: int = 1
    longest_first: int = -1
    dynamic: bool = False
    uneven: bool = False
    unit_axes: tuple[int, ...] = ()
    pdl: bool = True
    prefetch: int = 0
    prefetch_programs: int = 0

    @property
    def num_warpgroups(self) -> int:
        return 1 + self.num_consumers

    @property
    def num_threads(self) -> int:
        return 128 * self.num_warpgroups

    @property
    def split_dim(self) -> int:
        """The dimension of the result tile that cooperating warpgroups share out."""
        return self.split if not self.swapped else 1 - self.split

    @property
    def warpgroups_per_tile(self) -> int:
        """Consumer warpgroups that share one accumulator tile."""
        return 1 if self.ping_pong else self.num_consumers

    def describe(self) -> str:
        """One line, for reports and logs."""
        kind = "ping-pong" if self.ping_pong else "cooperative"
        kind += " in turns" if self.turns else ""
        parts = [
            f"{self.num_consumers} consumers {kind}",
            f"stages {self.num_stages}",
            f"mma_depth {self.mma_depth}",
        ]
        if self.cluster_size > 1:
            how = "split-K" if self.split_k > 1 else f"multicast along axis {self.cluster_axis}"
            parts.append(f"cluster {self.cluster_size} ({how})")
        if self.persistent:
            drawn = ", tiles drawn at run time" if self.dynamic else ""
            group = f", raster group {self.raster_group}" if self.raster_group else ""
            parts.append(f"persistent{drawn}{group}")
        more = {
            "deferred paced epilogue": self.deferred,
            f"prefetch {self.prefetch}": self.prefetch,
            "epilogue in place": self.in_place,
            f"its tiles in {self.epilogue_slots} slots": self.epilogue_slots,
            "operands copied by threads": self.copies,
            "operands swapped": self.swapped,
            f"{self.ctas_per_sm} CTAs an SM": self.ctas_per_sm > 1,
            f"registers {self.producer_registers}/{self.consumer_registers}": (
                self.consumer_registers
            ),
        }
        parts += [text for text, is_set in more.items() if is_set]
        return ", ".join(parts)


def revised(plan: Plan, **changes: object) -> Plan:
    """A plan with other values: `dataclasses.replace`, at a tenth of its time.

    A plan keeps its fields and nothing else in its dictionary, and checks none of them.

    Raises:
        TypeError: a plan has no such field.
    """
    made = object.__new__(Plan)
    made.__dict__.update(plan.__dict__, **changes)
    if len(made.__dict__) != len(plan.__dict__):
        raise TypeError(f"a plan has no {', '.join(changes.keys() - plan.__dict__.keys())}")
    return made


@dataclass(frozen=True)
class Schedule:
    """What the planner gives: plan and constexprs, or why there is only the single-role kernel."""

    plan: Plan | None
    constants: tuple[tuple[str, int], ...] = ()
    declined: tuple[Declined, ...] = ()
    cost_us: float = 0.0
    bottleneck: str = ""
    notes: tuple[str, ...] = field(default=())
