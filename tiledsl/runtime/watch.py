"""Debug builds on the host: what a launch left when one of its waits was given up, as an error.

The layout is that of `StallState` in `debug.cuh`.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tiledsl.codegen.module import LAUNCH_SLOTS
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Site
from tiledsl.errors import LaunchError
from tiledsl.errors import PipelineStall
from tiledsl.errors import TileError
from tiledsl.runtime import driver

SYMBOL = "tdsl_stall"
COUNTERS = "tile_counters"
WARPS = 32
CLUSTER = 8
HEAD = struct.Struct("<4I")
RECORD = struct.Struct("<4I")
STATE_BYTES = HEAD.size + CLUSTER * WARPS * RECORD.size
WAIT_SECONDS = 2.0
"""How long a wait of a debug build may last where `TILEDSL_DEBUG_SECONDS` does not say."""
MAX_SECONDS = 4000.0


@dataclass(frozen=True)
class Waiter:
    """A warp that gave up: where, and since when. rank: of its CTA in the cluster, if any."""

    rank: int | None
    warp: int
    site: Site
    parity: int
    count: int
    seconds: float

    @property
    def slot(self) -> int:
        """Slot of the ring, or id of the named barrier."""
        return self.count if self.site.kind == "named" else self.count % self.site.depth

    def __str__(self) -> str:
        what = f"named barrier {self.slot}"
        if self.site.kind != "named":
            article = "an" if self.site.kind == "empty" else "a"
            what = f"{article} {self.site.kind} slot of channel {self.site.channel}"
            what += f" (slot {self.slot} of {self.site.depth}, after {self.count} steps)"
        who = f"warp {self.warp}" + ("" if self.rank is None else f" of CTA {self.rank}")
        return f"{self.site.role} ({who}) waited for {what}, parity {self.parity}"


def wait_seconds() -> float:
    """How long a wait may last. Raises LaunchError for a setting that is no number."""
    text = os.environ.get("TILEDSL_DEBUG_SECONDS", "").strip()
    if not text:
        return WAIT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_SECONDS:
        raise LaunchError(
            f"TILEDSL_DEBUG_SECONDS must be a number of seconds up to {MAX_SECONDS:g}, got {text!r}"
        )
    return seconds


def fresh_state() -> bytes:
    """What the state of a module has to be before a launch."""
    return HEAD.pack(0, 0, math.ceil(wait_seconds() * 1e6), 0).ljust(STATE_BYTES, b"\0")


def stall_of(module: KernelModule, state: bytes, grid: tuple[int, int, int]) -> TileError | None:
    """The error for what a launch left; None when all waits ended and all assertions held."""
    stalled, first, budget_us, _ = HEAD.unpack_from(state)
    if not stalled:
        return None
    found: dict[str, Waiter] = {}
    numbers = [first, *(w for w in range(CLUSTER * WARPS) if w != first)]
    for number in numbers:
        rank, warp = divmod(number, WARPS)
        record = RECORD.unpack_from(state, HEAD.size + number * RECORD.size)
        site, parity, count, waited_us = map(int, record)
        if 0 < site <= len(module.sites):
            cta = rank if module.cluster_size > 1 else None
            made = Waiter(cta, warp, module.sites[site - 1], parity, count, waited_us / 1e6)
            found.setdefault(f"{rank} {site} {parity} {count}", made)
    index = int(stalled) - 1 + first // WARPS
    block = (index % grid[0], index // grid[0] % grid[1], index // (grid[0] * grid[1]))
    waiters = list(found.values())
    if not waiters:
        return PipelineStall(f"kernel {module.name}: a wait was given up", block=block)
    head = waiters[0]
    if head.site.kind == "assert":
        detail = f": {head.site.channel}" if head.site.channel else ""
        return TileError(f"device_assert failed in program {block}{detail}", head.site.loc)
    error = PipelineStall(
        f"kernel {module.name} stalled in block {block}: {head} for {head.seconds:.1f} s",
        head.site.loc,
        "the output of this launch is undefined; "
        f"TILEDSL_DEBUG_SECONDS sets how long a wait may last ({budget_us / 1e6:g} s)",
        role=head.site.role,
        kind=head.site.kind,
        channel=head.site.channel,
        slot=head.slot,
        parity=head.parity,
        count=head.count,
        block=block,
    )
    for other in waiters[1:]:
        error.note(f"at that time {other}", other.site.loc)
    return error


class Watcher:
    """Launches of a debug build, one at a time: each one is waited for."""

    def __init__(self, module: KernelModule) -> None:
        self.module = module
        self._lock = threading.Lock()

    def run(
        self,
        kernel: driver.Function,
        grid: tuple[int, int, int],
        stream: int,
        launch: Callable[[], None],
    ) -> None:
        """Launches, waits for the end of the stream and reads what was left.

        Raises:
            PipelineStall: a wait was given up; the context goes on.
            TileError: an assertion does not hold.
            LaunchError: the launch failed, or a CUDA graph captures the stream.
        """
        name = self.module.name
        with self._lock, driver.on_device(kernel.device):
            driver.check_not_capturing(stream, f"kernel {name}, a debug build, is waited for")
            state = driver.global_of(kernel, SYMBOL)
            driver.write(state, fresh_state())
            launch()
            driver.synchronize(stream, f"run kernel {name}")
            left = ctypes.create_string_buffer(STATE_BYTES)
            driver.read(state, left)
            stall = stall_of(self.module, left.raw, grid)
            if stall is None:
                return
            if any(isinstance(p, LaunchSlotParam) for p in self.module.params):
                driver.write(driver.global_of(kernel, COUNTERS), bytes(4 * LAUNCH_SLOTS))
            raise stall
