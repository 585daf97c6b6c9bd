"""The README matmul compiles for the benchmark's shapes without spills or serialised wgmmas.

From meta tensors, with no GPU. Where a disassembler is installed the SASS is read as well.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.matmul import matmul as picked
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import identity
from tests.gpu.matmul_kernels import linear
from tiledsl.compiled import Kernel
from tiledsl.runtime.disassembler import find_disassembler
from tiledsl.runtime.disassembler import sass
from tiledsl.runtime.nvrtc import moved_accumulators
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.target import HOPPER
from tiledsl.ws.plan import Plan

pytestmark = pytest.mark.nvrtc

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
SHAPES = [
    (8192, 8192, 512),
    (8192, 8192, 16384),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (4096, 14336, 4096),
    (4104, 4104, 4104),
    (4160, 4160, 4160),
    (128, 4096, 4096),
    (16, 8192, 8192),
]
PING_PONG = {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 2}
COOPERATIVE = {"BM": 128, "BN": 256, "num_consumers": 2, "ping_pong": False, "cluster": 1}
COLUMNS = {"BM": 64, "BN": 256, "num_consumers": 2, "ping_pong": False}
THREE = {"BM": 192, "BN": 176, "num_consumers": 3, "cluster": 2}
ONE = {"BM": 128, "BN": 128, "num_consumers": 1}
SPLIT = {"BM": 128, "BN": 64, "split_k": 2}
SWAPPED = {"BM": 16, "BN": 128, "swap_operands": True}
ONE_SHOT = {"BM": 128, "BN": 128, "persistent": False}


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def meta(rows: int, cols: int, dtype: torch.dtype, *, transposed: bool = False) -> torch.Tensor:
    shape = (cols, rows) if transposed else (rows, cols)
    made = torch.empty(shape, device="meta", dtype=dtype)
    return made.t() if transposed else made


def compiled(
    shape: tuple[int, int, int], dtype: torch.dtype, order: str = "NT", out=None, **options
) -> Kernel:
    m, n, k = shape
    a = meta(m, k, dtype, transposed=order[0] == "T")
    b = meta(k, n, dtype, transposed=order[1] == "T")
    c = meta(m, n, out or dtype)

    def grid(constants):
        return tl.cdiv(m, constants["BM"]), tl.cdiv(n, constants["BN"])

    return matmul.compile(a, b, c, grid=grid, **options)


def check(kernel: Kernel) -> Plan:
    """What holds for every specialised kernel; returns its plan."""
    made, plan, module = kernel.compiled, kernel.plan, kernel.module
    assert made is not None
    assert isinstance(plan, Plan), f"not specialised: {kernel.notes} {kernel.declined}"
    print(
        f"python {kernel.python_seconds * 1e3:.0f} ms, NVRTC {made.seconds * 1e3:.0f} ms: {plan.describe()}"
    )
    assert not [n for n in kernel.notes if "given up" in n], kernel.notes
    assert made.spill_bytes == 0
    assert made.stack_bytes == 0
    assert not re.search(r"C75\d\d", made.log), made.log
    assert module.smem_bytes == kernel.smem.end_bytes <= HOPPER.smem_bytes
    check_registers(plan, made.registers)
    check_sass(plan, made.cubin)
    return plan


def check_registers(plan: Plan, at_launch: int) -> None:
    """The register file of an SM holds the CTA, at launch and after setmaxnreg."""
    assert at_launch * plan.num_threads <= HOPPER.registers_per_sm
    if plan.consumer_registers:
        after = plan.producer_registers + plan.num_consumers * plan.consumer_registers
        assert after * 128 <= HOPPER.registers_per_sm
        assert after * 128 <= at_launch * plan.num_threads
        assert plan.producer_registers % 8 == plan.consumer_registers % 8 == 0


def check_sass(plan: Plan, cubin: bytes) -> None:
    if find_disassembler() is None:
        print("no disassembler: SASS not read")
        return
    text = sass(cubin)
    wanted = ["HGMMA", "UTMALDG"]
    if plan.consumer_registers:
        wanted.append("USETMAXREG")
    if plan.split_k == 1:
        wanted.append("UTMASTG")
    if plan.cluster_size > 1 and plan.split_k == 1:
        wanted.append("MULTICAST")
    missing = [w for w in wanted if w not in text]
    assert not missing, f"not in the SASS: {missing}"
    for spill in ("STL", "LDL"):
        assert not re.search(rf"\b{spill}\b", text), f"{spill} in the SASS: local memory"


def test_disassembler_is_reported(record_property):
    """Says in the test's log which disassembler the SASS checks use."""
    record_property("disassembler", str(find_disassembler()))


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_default_plans(shape, dtype):
    kernel = compiled(shape, dtype)
    plan = check(kernel)
    bm, bn = kernel.constants["BM"], kernel.constants["BN"]
    programs = math.ceil(shape[0] / bm) * math.ceil(shape[1] / bn) * plan.split_k
    assert programs >= min(HOPPER.num_sms // 2, shape[0] * shape[1] // 4096), "most SMs are idle"


@pytest.mark.parametrize("order", ["NN", "TN", "TT"])
@pytest.mark.parametrize("shape", [(8192, 8192, 4096), (4096, 4096, 4096)], ids=str)
def test_operand_orders(shape, order):
    check(compiled(shape, BF16, order))


FORCED = {
    "ping-pong": PING_PONG,
    "cooperative": COOPERATIVE,
    "columns": COLUMNS,
    "three": THREE,
    "one": ONE,
    "split-k": SPLIT,
    "swapped": SWAPPED,
    "one-shot": ONE_SHOT,
}


@pytest.mark.parametrize("name", FORCED)
def test_forced_plans(name):
    options = FORCED[name]
    kernel = compiled((4096, 4096, 1024), BF16, **options)
    plan = check(kernel)
    assert kernel.constants["BM"] == options["BM"]
    assert kernel.constants["BN"] == options["BN"]
    want = {k: v for k, v in options.items() if k not in ("BM", "BN")}
    got = {
        "ping_pong": plan.ping_pong, "cluster": plan.cluster_size, "split_k": plan.split_k,
        "num_consumers": plan.num_consumers, "swap_operands": plan.swapped, "persistent": plan.persistent,
    }  # fmt: skip
    assert {k: got[k] for k in want} == want


@pytest.mark.parametrize("name", ["ping-pong", "cooperative", "three"])
def test_fp32_outputs(name):
    check(compiled((4096, 4096, 1024), BF16, out=FP32, **FORCED[name]))


@pytest.mark.parametrize("order", ["NN", "TT"])
@pytest.mark.parametrize("num_stages", [2, 3])
def test_depths(num_stages, order):
    plan = check(compiled((4096, 4096, 1024), BF16, order, num_stages=num_stages, **PING_PONG))
    assert plan.num_stages == num_stages


@pytest.mark.parametrize(
    "options", [{}, {"prefetch": 2, "split_k": 2}, {"BK": 128, "prefetch": 5}], ids=str
)
def test_the_stream_is_fetched_before_the_wait(options):
    kernel = compiled((16, 8192, 8192), BF16, **options)
    assert check(kernel).prefetch > 0
    lines = ptx_of(kernel.module).splitlines()
    fetch = {i for i, line in enumerate(lines) if "cp.async.bulk.prefetch.tensor.2d.L2" in line}
    load = {i for i, line in enumerate(lines) if "cp.async.bulk.tensor" in line}
    (wait,) = (i for i, line in enumerate(lines) if "griddepcontrol.wait" in line)
    entry = next(i for i, line in enumerate(lines) if ".entry" in line)
    before, after = reached(lines, entry, wait), reached(lines, wait + 1)
    assert fetch
    assert load
    assert fetch <= before - after
    assert load <= after - before


def reached(lines: list[str], start: int, end: int = -1) -> set[int]:
    """Numbers of the lines of PTX that may run from line `start` on, not going on past line `end`."""
    labels = {line.strip()[:-1]: i for i, line in enumerate(lines) if re.match(r"\$L\w+:$", line)}
    found: set[int] = set()
    work = [start]
    while work:
        at = work.pop()
        if at in found or at == end or at >= len(lines):
            continue
        found.add(at)
        jump = re.search(r"\bbra(?:\.uni)?\s+(\$L\w+);", lines[at])
        if jump:
            work.append(labels[jump[1]])
        always = re.match(r"\s*(bra|ret|exit)\b", lines[at])
        if not always:
            work.append(at + 1)
    return found


def test_single_role():
    kernel = compiled((4096, 4096, 1024), BF16, warp_specialize=False)
    made = kernel.compiled
    assert made is not None
    assert not isinstance(kernel.plan, Plan)
    assert made.spill_bytes == 0
    assert not made.serialized
    if find_disassembler() is not None:
        assert "HGMMA" in sass(made.cubin)


def test_text_is_the_same_again():
    first, second = (compiled((4104, 4104, 4104), BF16).module for _ in range(2))
    assert first == second


def test_epilogues_beside_the_accumulators_come_first() -> None:
    """An f32 result of ping-pong consumers: in the accumulators' place ptxas spilled them."""
    a, bias = (torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((264, 200), (520,)))
    b, c = (
        torch.empty(520, 200, device="meta", dtype=torch.bfloat16),
        torch.empty(264, 520, device="meta"),
    )
    kernel = linear.compile(
        a, b.t(), bias, c, 0.1, identity, grid=(3, 4), BM=128, BN=160, ping_pong=True
    )
    assert not kernel.plan.in_place
    assert kernel.compiled.spill_bytes == 0
    assert kernel.compiled.notes == ()


@tiledsl.jit
def scaled(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, factor: tl.float32,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc * factor)


def test_a_scaled_product_keeps_the_plan_of_the_bare_one() -> None:
    """Beside 192 accumulators the results of a chunk spill; in their place they do not."""
    a, b, c = (torch.empty(8192, 8192, device="meta", dtype=torch.bfloat16) for _ in range(3))
    grid = lambda t: (tl.cdiv(8192, t["BM"]), tl.cdiv(8192, t["BN"]))  # noqa: E731
    kernel = scaled.compile(a, b.t(), c, 0.5, grid=grid)
    assert (kernel.constants["BM"], kernel.constants["BN"]) == (128, 192)
    assert kernel.plan.ping_pong
    assert kernel.compiled.spill_bytes == 0
    assert kernel.compiled.notes == ()


# fmt: off
@tiledsl.jit
def pairs(a: tl.Tensor, b: tl.Tensor, out: tl.Tensor, low: tl.Tensor, best: tl.Tensor,
          BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """Sums and differences of neighbours, a copy in int8, and the maximum of each row."""
    i, j = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((i * BM, k), (BM, BK)), b.load((k, j * BN), (BK, BN)), acc)
    x, y = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
    r = tl.reshape(tl.join(x - y, x + y), (BM, BN))
    out.store((i * BM, j * BN), r)
    low.store((i * BM, j * BN), tl.clamp(r, -127.0, 127.0).to(tl.int8))
    best.store((j, i * BM), tl.max(r, axis=1))
# fmt: on


def test_after_many_spills_comes_a_tile_with_fewer_registers() -> None:
    """Large tiles spill here; a smaller one is specialised, and the report names those given up."""
    n = 4096
    a, b, out = (meta(n, n, BF16) for _ in range(3))
    low = torch.empty(n, n, dtype=torch.int8, device="meta")
    grid = lambda m: (tl.cdiv(n, m["BM"]), tl.cdiv(n, m["BN"]))  # noqa: E731
    kernel = pairs.compile(a, b, out, low, meta(n, n, FP32), grid=grid)
    assert isinstance(kernel.plan, Plan)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    given_up = [note for note in kernel.notes if "registers spill" in note]
    assert given_up, "the largest tile is tried first"


@pytest.mark.parametrize("dtype", [FP32, torch.float64], ids=str)
def test_wide_operands_fit_with_what_the_compiler_picks(dtype: torch.dtype) -> None:
    """Operands that are rounded for the tensor core, or do without it: beside the rings."""
    x = torch.empty(333, 336, device="meta", dtype=dtype)[:, :333]
    made = picked.compile(x, x, x, grid=grid_of(333, 333))
    assert made.compiled is not None
    assert made.compiled.spill_bytes <= 32  # of 255 registers


def test_a_depth_of_its_own_is_left_for_wide_operands() -> None:
    """With BK given, other sides of the tile are smaller."""
    x = torch.empty(256, 256, device="meta")
    made = matmul.compile(x, x, x, grid=grid_of(256, 256))
    assert made.constants["BM"] * made.constants["BN"] < 128 * 128


# fmt: off
@tiledsl.jit
def nested(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, G,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, G):
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


@pytest.mark.parametrize("tile", [(128, 32), (128, 128), (64, 64)], ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_accumulators_of_a_nest_stay_where_they_are(tile: tuple[int, int], depth: int) -> None:
    """ptxas moved them to other registers between a wgmma and its wait (C7517), and sums were wrong."""
    BM, BN = tile
    a, b = (torch.empty(s, device="meta", dtype=FP16) for s in ((512, 640), (640, 512)))
    c = torch.empty(512, 512, device="meta")
    made = nested.compile(a, b, c, 2, BM=BM, BN=BN, grid=(4, 4), mma_depth=depth)
    assert made.compiled is not None
    assert not made.compiled.serialized
    assert not moved_accumulators(made.compiled.notes)
    assert not any("given up" in note for note in made.notes)
