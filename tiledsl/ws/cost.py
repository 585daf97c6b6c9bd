"""Cost model of a specialised dot loop: cycles of the slowest CTA.

The constants were fitted to kernels of this shape on an H200 (docs/performance.md): what a tile
costs besides its wgmmas, how busy the tensor core is inside a loop, what L2 and HBM deliver. They
rank plans; they do not predict microseconds to a percent.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ws.plan import Plan

TILE_CLOCKS_PING_PONG = 1000
TILE_CLOCKS_DEFERRED = 1800
TILE_CLOCKS_OVERLAPPED = 2600
TILE_CLOCKS_DIRECT = 9000
START_CLOCKS = 2500
STAY_CLOCKS = 600
"""Of CTAs that walk over tiles where each has one: 0.25 to 0.4 us of M = 1 to 64, N = K = 8192 and
of 2048 cubed.
"""
REDUCE_CLOCKS = 1500
DSMEM_BYTES_PER_CLOCK = 20.0
OUTSIDE_BYTES_PER_CLOCK = 25.0
STREAM_OUTSIDE_BYTES_PER_CLOCK, OUTSIDE_SHARE = 20.0, 0.9
"""Of rows of boxes that lie outside of a tensor, beside a stream: it hides few. N = K = 8192, tiles
of 64 rows where there are 1, 16, 32: 48.0, 43.8, 40.3 us for 30.3, 30.7, 31.6 with as many as there
are; N = 28672, 64 x 224: 117.5, 110.2, 109.1 us.
"""
REREAD_SHARE = 0.3
ROW_SWITCH_BYTES = 5.0
L2_BYTES_PER_CLOCK = 58.0
HBM_BYTES_PER_CLOCK, STREAM_BYTES_PER_CLOCK = 2450.0, 2600.0
"""In general, and where an operand is streamed."""
CLOCK_GHZ = 1.7
MISALIGNED_PITCH = 1.6
LATENCY_CLOCKS = 1400
LOAD_CLOCKS = 1800
"""A round of loads by the consumers: 12 of them took 13 us of a tile of 128 x 192."""
PAUSE_SHARE = 0.3
"""Of a tile's loop, for which loads for the next epilogue keep clear of where a tile begins, and of
each other. A residual, 8192 x 8192 x 4096 and K = 1024, clocks to those of a bare product, with 0,
0.1, 0.16, 0.2, 0.26, 0.35 before each of two chunks: 0.974, 0.994, 0.994, 0.995, 0.995, 0.994 and
0.945, 0.956, 0.965, 0.966, 0.974, 0.978.
"""
SMEM_BYTES_PER_CLOCK = 128.0
STREAM_ACTIVE = 0.75
"""Of SMs without work others take a part beside a stream: 96 CTAs reach 0.82 of HBM, 112 0.9."""
FLIGHT_SHARE, FLIGHT_BYTES = 0.07, 8e6
"""By how much HBM falls behind where that many bytes of a stream are asked for at a time; it goes
by the square. M = 64, N = K = 8192: 33.5 us with 5 of 6 slots of 16 KB, 34.1 with 2 of 3 of 32 KB.
"""
CONSUMER_CLOCKS = 300
"""Of each warpgroup that multiplies, beside a stream: M = 16, 32, 48, N = K = 4096, 64 x 128, split
in two, 9.34, 9.66, 9.97 us with one, 9.75, 9.88, 10.22 with two.
"""
IDLE_SHARE, IDLE_SHARE_PLAIN = 0.5, 0.1
"""What a last wave that does not fill the SMs costs a stream, of the share that is idle: where CTAs
walk over tiles or share them, and where each has one. M = 1, N = 28672, K = 8192, 3.4 waves: 113.3
and 105.6 us; M = 16, N = 6144, K = 4096, two waves of clusters of 2 and 4: 15.7 and 18.3 us.
"""
REDUCE_SHARE = 0.4
"""Of what parts of K are added up in, where HBM bounds: the next kernel fetches meanwhile."""
BOUND_SHARE = 0.8
"""Of what CTAs do, from which on HBM counts as what bounds a stream: they wait for it at the start.
Block scales, 64 x 7168 x 2048, in tiles of 64 x 64: 24 KB fetched ahead 5.90 us, 32 and 64 KB 5.75
and 5.72.
"""
MADE_BOUND_SHARE = 0.5
"""The same where operands are made, whose clocks are counted as if nothing hid them."""
PRODUCT_CLOCKS = 200
"""From the end of a product to the start of the next, besides what is done with its elements."""
MADE_CLOCKS, LEAST_PRODUCT_CLOCKS, MADE_ALONE, MADE_BESIDE = 100, 18, 1.2, 30
"""Of an iteration whose operand a is made: waits, barriers, the first loads; of an instruction with
an operand in registers, however few columns it has; by how much more one warpgroup takes than two;
as the first where another CTA of the SM goes on meanwhile.
int8, M = 16, 64, N = K = 8192: 19.3 and 22.6 us with two warpgroups, before 20.6 with two, 23.4
with one.
"""
HANDOFF_CLOCKS = 400
"""Between products of a loop that CUDA cores go on with, shared by its warpgroups. fp8 with f32
sums, 8192 x 8192 x 4096: a slot takes 157 clocks more than its wgmmas with three warpgroups of
64 x 128, 200 with two, whatever their columns.
"""

ROW_COPY_CLOCKS, COPY_CLOCKS = 30, 75
"""From one copy of a thread of a load role to its next: of a row whose address it keeps, and of one
whose address it computes. Rows by index, 4096 cubed: 8 copies take 200 clocks, with 16 more of the
other operand 2200; 48 and 96 copies of rows that begin anywhere, 4 at a time, 2700 and 4500.
"""
SINGLE_SHARE = 1.5
"""Clocks of an iteration of a single role whose threads copy, over those of its wgmmas: 1.42 to
1.66 for the same shapes.
"""
COPIES_IN_TURN = 1.07
"""What warpgroups with a tile each cost where threads copy: 128 x 128, 225 us for 212."""
VECTOR_CLOCKS = 60
"""As HANDOFF_CLOCKS, of loops that read vectors (scales) from their slots: to 8192 x 8192 x 4096
without scales 17 clocks a slot with three warpgroups, to 64 x 7168 x 2048 some 30 with two.
"""
BLOCK_CLOCKS = 150
"""As VECTOR_CLOCKS, where a tile lies in several blocks of scales: to the same tile without scales
70 to 92 clocks a slot with two warpgroups of 64 x 224, 68 with three of 64 x 112.
"""
CHOSEN_SCALES = 3
"""By how much more where warpgroups share out the columns: each element chooses its scale."""


@dataclass(frozen=True)
class Problem:
    """What a launch asks for, in the terms of the model.

    grid: programs per axis. trips: iterations of the dot loop. tile: (M, N, K) of the dot,
    elements.
    itemsize: bytes of an operand element. pitch_128: row pitches are multiples of 128 bytes.
    operand_bytes: distinct bytes of the operands, read from HBM at least once. out_bytes: bytes
    written.
    rereads: programs that read the larger operand's tiles.
    epilogue_tiles: tiles of the result's size that the epilogue loads.
    padding: per operand, the share of a tile's rows that lies outside of the tensor.
    adds: passes of CUDA cores over the elements of a product in each iteration.
    reads_vectors: vectors come in the slots, and what is done with a product needs them.
    cuts_blocks: those of its columns change inside of a tile.
    copy_clocks: in which the threads of the load role start the copies of an iteration.
    few_rows: one operand has so few that the other one is streamed.
    made_clocks: of CUDA cores that make operand a in an iteration. loaded: bytes of a loaded
    element of each operand, where they are not `itemsize`.
    """

    grid: tuple[int, int, int]
    trips: int
    tile: tuple[int, int, int]
    itemsize: int
    pitch_128: bool
    operand_bytes: int
    out_bytes: int
    staged: bool
    dots: int = 1
    adds: int = 0
    padding: tuple[float, float] = (0.0, 0.0)
    rereads: int = 1
    epilogue_tiles: int = 0
    reads_vectors: bool = False
    cuts_blocks: bool = False
    copy_clocks: float = 0.0
    few_rows: bool = False
    made_clocks: float = 0.0
    loaded: tuple[int, int] = (0, 0)

    @property
    def loads(self) -> tuple[int, int]:
        """Bytes of a loaded element of a and of b."""
        return self.loaded if any(self.loaded) else (self.itemsize, self.itemsize)

    @property
    def product_clocks(self) -> float:
        """Clocks of the wgmmas of an iteration."""
        M, N, K = self.tile
        return M * N * K * self.itemsize / 4096 * self.dots


@dataclass(frozen=True)
class Cost:
    """Clocks of the slowest CTA, and what bounds it."""

    clocks: float
    bottleneck: str
    waves: int

    @property
    def us(self) -> float:
        return self.clocks / CLOCK_GHZ / 1e3


def copies_are_late(p: Problem) -> bool:
    """Whether a load role copies more slowly than all threads of a single role go on."""
    return p.copy_clocks > SINGLE_SHARE * p.product_clocks


def resident_clusters(plan: Plan, num_sms: int) -> int:
    """Clusters (CTAs when there are none) that run at once."""
    size = plan.cluster_size
    if size == 4:
        return num_sms * 30 // 132
    return num_sms * plan.ctas_per_sm // size


def cluster_tiles(plan: Plan, grid: tuple[int, int, int]) -> int:
    """Tiles that the clusters walk over."""
    n = list(grid)
    if plan.split_k == 1 and plan.cluster_size > 1:
        n[plan.cluster_axis] = -(-n[plan.cluster_axis] // plan.cluster_size)
    return n[0] * n[1] * n[2]


def estimate(plan: Plan, p: Problem, num_sms: int, multicast: tuple[bool, bool]) -> Cost:
    """The cost of one plan. multicast: whether operands a and b are shared over the cluster."""
    M, N, K = p.tile
    mma = p.product_clocks
    tiles = cluster_tiles(plan, p.grid)
    clusters = resident_clusters(plan, num_sms)
    waves = -(-tiles // clusters)
    trips = -(-p.trips // plan.split_k)
    per_slot_l2 = l2_clocks(plan, p, multicast)
    multiplies = mma * (loop_factor(plan, p, waves) if not p.made_clocks else 1.0)
    per_slot = max(
        multiplies,
        per_slot_l2 * plan.ctas_per_sm,
        alone_clocks(plan, p, mma),
        smem_clocks(plan, p) * plan.ctas_per_sm,
        p.copy_clocks,
        made_clocks(plan, p),
    ) * (COPIES_IN_TURN if plan.copies and plan.ping_pong else 1.0)
    epilogue = tile_clocks(plan, p)
    body = waves * (trips * per_slot + epilogue)
    loads = load_clocks(plan, p)
    if loads and plan.ping_pong:
        # One warpgroup loads while the other multiplies: a tile takes half of both, and nothing
        # hides the loads of the last one.
        body = max(body, waves * (trips * per_slot + loads) / 2) + loads
    else:
        body += waves * loads
    reduce = 0.0
    if plan.split_k > 1:
        reduce = REDUCE_CLOCKS + reduce_bytes(plan, p) / DSMEM_BYTES_PER_CLOCK
    streams = p.few_rows and bool(plan.unit_axes)
    if streams and not plan.persistent:
        body += (waves - 1) * START_CLOCKS
    active = max(1, min(tiles * plan.cluster_size, num_sms)) / num_sms
    again = REREAD_SHARE * (min(p.rereads, 4) - 1)
    read = p.operand_bytes * (1 + again)
    chunk = 1 + ROW_SWITCH_BYTES / (K * p.loads[0])
    rate = STREAM_BYTES_PER_CLOCK if streams else HBM_BYTES_PER_CLOCK
    reached = min(1.0, active * 1.05) ** (STREAM_ACTIVE if streams else 1.0)
    hbm = (read * chunk + p.out_bytes) / (rate * reached)
    outside = waves * trips * K * (M * p.padding[0] * p.loads[0] + N * p.padding[1] * p.loads[1])
    if streams:
        late = OUTSIDE_SHARE * (outside / STREAM_OUTSIDE_BYTES_PER_CLOCK / hbm) ** 2
        hbm *= 1 + late + stream_waits(plan, p, tiles, clusters)
    else:
        hbm += outside / OUTSIDE_BYTES_PER_CLOCK
    if plan.cluster_size > 1:
        body, reduce = body * 1.004, reduce * 1.004
    # Copies run on while the tensor core waits.
    waits = handoff_clocks(plan, p) + vector_clocks(plan, p, per_slot - multiplies)
    waits *= waves * trips
    start = START_CLOCKS
    if streams:
        start += CONSUMER_CLOCKS * (1 if p.made_clocks else plan.num_consumers)
        start += STAY_CLOCKS if plan.persistent and waves == 1 else 0
    longest = max(body + waits + reduce, hbm + REDUCE_SHARE * reduce * streams)
    total = longest + 0.1 * min(body + reduce, hbm) + start
    inside = "tensor core" if multiplies > per_slot_l2 else "L2"
    share = MADE_BOUND_SHARE if p.made_clocks else BOUND_SHARE
    bound = "HBM" if hbm > (share if streams else 1.0) * (body + reduce) else inside
    return Cost(total, bound, waves)


def stream_waits(plan: Plan, p: Problem, tiles: int, clusters: int) -> float:
    """The share by which HBM falls behind where an operand is streamed.

    clusters: that run at once. Of one wave, what idle SMs cost is priced elsewhere.
    """
    M, N, K = p.tile
    ctas = max(1, min(tiles, clusters)) * plan.cluster_size
    streamed = M * K * p.loads[0] if M >= N or p.made_clocks else N * K * p.loads[1]
    flight = max(0.5, plan.num_stages - 1) * streamed * ctas
    last = tiles % clusters if tiles > clusters else 0
    idle = (clusters - last) / tiles if last else 0.0
    share = IDLE_SHARE if plan.persistent or plan.cluster_size > 1 else IDLE_SHARE_PLAIN
    return FLIGHT_SHARE * (FLIGHT_BYTES / flight) ** 2 + idle * share


def alone_clocks(plan: Plan, p: Problem, mma: float) -> float:
    """Clocks of an iteration of one warpgroup that nothing of its own overlaps.

    The wgmmas of other warpgroups run while it goes on with its products.
    """
    if not p.adds:
        return 0.0
    groups = plan.warpgroups_per_tile
    return (mma + p.tile[0] * p.tile[1] * p.adds / 128) / groups + PRODUCT_CLOCKS


def made_clocks(plan: Plan, p: Problem) -> float:
    """Clocks of an iteration whose operand a is made.

    What CUDA cores do adds to the products, even where another warpgroup multiplies meanwhile:
    int8, M = 4096, N = K = 8192, 128 x 256 x 64, 1330 clocks, of them 1024 of products.
    """
    if not p.made_clocks:
        return 0.0
    M, N, K = p.tile
    products = M / 64 * K / 16 * max(LEAST_PRODUCT_CLOCKS, N / 2) * p.dots
    if plan.ctas_per_sm > 1:
        ring = {1: 1.8, 2: 1.4, 3: 1.12}.get(plan.num_stages, 1.0)
        return ((p.made_clocks + products) * plan.ctas_per_sm + MADE_BESIDE) * ring
    ring = {1: 1.6, 2: 1.05}.get(plan.num_stages, 1.0)
    alone = MADE_ALONE if plan.warpgroups_per_tile == 1 else 1.0
    return ((p.made_clocks + products) * alone + MADE_CLOCKS) * ring


def handoff_clocks(plan: Plan, p: Problem) -> float:
    """Clocks of an iteration in which the tensor core waits for the next product.

    A CTA whose only warpgroup takes all of K of a stream waits for nothing but its own products
    (`alone_clocks`). Block scales, M = 64, N = 7168, microseconds, such tiles of 64 columns beside
    128 columns, two warpgroups and K in two parts: 5.7-5.9 and 6.8 (K = 2048), 14.7-15.5 and 15.5
    (K = 7168).
    """
    groups = plan.warpgroups_per_tile
    is_alone = p.few_rows and bool(plan.unit_axes) and groups == plan.split_k == 1
    return HANDOFF_CLOCKS / max(2, groups) if p.adds and not is_alone else 0.0


def vector_clocks(plan: Plan, p: Problem, idle: float) -> float:
    """Clocks of an iteration in which products wait for the vectors of their slot.

    idle: by how much longer than its wgmmas a slot takes. Each 64 rows of a warpgroup read theirs.
    Where the larger operand is read once or twice, warpgroups with rows of their own find the block
    of their columns in that time. Block scales, N = 7168, 128 x 112 and 128 x 128, microseconds:
    M = 128, K in two parts, 12.06 and 12.75 (K = 4096), 18.79 and 19.81 (7168); M = 256, 9.45 and
    9.90 (2048), 16.57 and 17.69 (4096), 27.84 and 29.70 (7168).
    """
    if not p.adds or not p.reads_vectors:
        return 0.0
    groups = plan.warpgroups_per_tile
    rows = p.tile[1] if plan.swapped else p.tile[0]
    chosen = bool(plan.split or plan.swapped)
    blocks = max(1.0, rows / (64 if plan.split else 64 * groups)) / max(2, groups)
    cut = BLOCK_CLOCKS * (CHOSEN_SCALES if chosen else 1) * p.cuts_blocks * blocks
    if p.rereads < 3 and groups > 1 and not chosen:
        cut = max(0.0, cut - max(0.0, idle))
    return VECTOR_CLOCKS * blocks + cut


def smem_clocks(plan: Plan, p: Problem) -> float:
    """Clocks in which shared memory gives a slot to the wgmmas.

    Each instruction of 64 rows reads its rows and all columns of its warpgroup; the slot is
    written at half that price.
    """
    M, N, K = p.tile
    rows, cols = (N, M) if plan.swapped else (M, N)
    groups = plan.warpgroups_per_tile
    parts = groups if plan.split else 1
    instructions = rows * parts / 64
    if p.made_clocks:  # read by threads, two bytes a lane
        a, b = p.loads
        num_bytes = (M * 2.5 * a + (instructions * cols + N / 2) * p.dots * b) * K
        return num_bytes / SMEM_BYTES_PER_CLOCK
    reads = instructions * (64 + cols / parts) * p.dots
    return (reads + (M + N * p.dots) / 2) * K * p.itemsize / SMEM_BYTES_PER_CLOCK


def l2_clocks(plan: Plan, p: Problem, multicast: tuple[bool, bool]) -> float:
    """Clocks in which a slot arrives.

    Multicast saves only where rows straddle L2 lines, so it counts only there.
    """
    M, N, K = p.tile
    share = [1.0 if p.pitch_128 or not m else 1 / plan.cluster_size for m in multicast]
    a, b = p.loads
    slot_bytes = (M * share[0] * a + N * share[1] * p.dots * b) * K
    return slot_bytes / L2_BYTES_PER_CLOCK * (1.0 if p.pitch_128 else MISALIGNED_PITCH)


def reduce_bytes(plan: Plan, p: Problem) -> float:
    """Partial sums that one owner receives, fp32."""
    owned = -(-plan.num_consumers // plan.split_k)
    return owned * (plan.split_k - 1) * p.tile[0] * p.tile[1] * 4 / plan.num_consumers


def loop_factor(plan: Plan, p: Problem, waves: int) -> float:
    """Clocks of a loop iteration over those of its wgmmas."""
    if plan.ping_pong:
        base = 1.012 if plan.mma_depth > 1 else 1.2
        if waves < 2:
            base *= 1.2
        if plan.cluster_size == 1:
            base *= 1.015
    elif plan.num_consumers == 1:
        base = 1.08 if plan.mma_depth > 1 else 1.35
    else:
        base = 1.02 if p.tile[0] * p.tile[1] <= 128 * 272 else 1.06
    ring = {1: 2.5, 2: 1.5, 3: 1.06 if not plan.ping_pong else 1.12}.get(plan.num_stages, 1.0)
    return base * ring


def load_clocks(plan: Plan, p: Problem) -> float:
    """Clocks in which the consumers load tiles for the epilogue of a tile themselves.

    In place they load parts of a chunk one after the other; through a channel they wait for none.
    """
    if not p.epilogue_tiles or plan.epilogue_slots:
        return 0.0
    rounds = p.tile[1] / 16 if plan.in_place else 2.0
    return rounds * LOAD_CLOCKS * p.epilogue_tiles


def pause_of(plan: Plan, p: Problem) -> int:
    """Clocks, for an iteration, that loads for the next epilogue keep clear of a tile's start."""
    return round(PAUSE_SHARE * p.product_clocks) if plan.persistent else 0


def tile_clocks(plan: Plan, p: Problem) -> float:
    """Clocks of a tile besides its loop."""
    scale = p.tile[0] * p.tile[1] / (128 * 256)
    if not p.staged:
        return TILE_CLOCKS_DIRECT * scale
    if plan.ping_pong:
        return TILE_CLOCKS_PING_PONG
    if plan.deferred:
        return TILE_CLOCKS_DEFERRED * (min(1.0, 2 * scale) if plan.copies else 1.0)
    return LATENCY_CLOCKS + TILE_CLOCKS_OVERLAPPED * scale
