"""The examples of memory-bound kernels: no spills, 16 bytes an access, programs that clusters share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
from examples import cross_entropy
from examples import norms
from examples import softmax
from examples import transpose
from tiledsl.compiled import Kernel
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.ws.single_plan import SinglePlan

pytestmark = pytest.mark.nvrtc
BF16, F32 = torch.bfloat16, torch.float32
ROWS = 4096


def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def softmax_of(n: int, dtype: torch.dtype) -> Kernel:
    x, block = empty(ROWS, n, dtype=dtype), tiledsl.next_power_of_2(n)
    args = (x, x, n, n, ROWS, n, softmax.rows_per_program(n), block)
    return softmax.softmax_kernel.compile(*args, grid=(ROWS,))


def norm_of(n: int, dtype: torch.dtype) -> Kernel:
    x, w, mean = empty(ROWS, n, dtype=dtype), empty(n, dtype=dtype), empty(ROWS, dtype=F32)
    block = tiledsl.next_power_of_2(n)
    rows = norms.rows_per_program(n, dtype.itemsize)
    args = (x, x, w, w, mean, mean, n, ROWS, n, 1e-5, True, rows, block)
    return norms.norm_forward.compile(*args, grid=(ROWS,))


def gradient_of(n: int, dtype: torch.dtype, *, centred: bool = True, **options: int) -> Kernel:
    x, w, mean = empty(ROWS, n, dtype=dtype), empty(n, dtype=dtype), empty(ROWS, dtype=F32)
    block = tiledsl.next_power_of_2(n)
    columns = 8192 if block < 4096 else 16384 // dtype.itemsize
    programs = max(1, 132 * columns // block)
    parts = empty(programs, n, dtype=F32)
    args = (x, x, x, w, mean, mean, parts, parts, n, n, ROWS, n, centred, block)
    return norms.norm_backward.compile(*args, grid=(programs,), **options)


def loss_of(n: int, dtype: torch.dtype) -> Kernel:
    x, loss = empty(ROWS, n, dtype=dtype), empty(ROWS, dtype=F32)
    target = empty(ROWS, dtype=torch.int64)
    args = (x, target, loss, loss, n, n, -100, 4, 128, 16 // x.element_size())
    return cross_entropy.cross_entropy_forward.compile(*args, grid=(ROWS,))


def loss_gradient_of(n: int, dtype: torch.dtype) -> Kernel:
    x, lse = empty(ROWS, n, dtype=dtype), empty(ROWS, dtype=F32)
    target = empty(ROWS, dtype=torch.int64)
    args = (x, x, target, lse, lse, n, n, -100, 2048)
    return cross_entropy.cross_entropy_backward.compile(*args, grid=(ROWS, 25))


def accesses(kernel: Any) -> set[str]:
    """Kinds of global accesses that the PTX has."""
    return set(re.findall(r"((?:ld|st)\.global[\w.:]*)", ptx_of(kernel.module)))


WIDE = {"ld.global.v4.b32", "st.global.v4.b32"}
# Width, dtype, warps of a CTA, CTAs of a program.
PLANS = [
    (256, BF16, 8, 1),
    (4096, F32, 8, 1),
    (5000, BF16, 8, 1),
    (16384, BF16, 16, 1),
    (131072, BF16, 8, 8),
    (131072, F32, 8, 8),
]
FEW_SPILLS = 64


@pytest.mark.parametrize(("n", "dtype", "warps", "ctas"), PLANS)
def test_softmax(n: int, dtype: torch.dtype, warps: int, ctas: int) -> None:
    kernel = softmax_of(n, dtype)
    assert isinstance(kernel.plan, SinglePlan)
    assert (kernel.plan.num_warps, kernel.plan.num_ctas) == (warps, ctas)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    assert kernel.compiled.registers * 32 * warps * kernel.plan.min_blocks <= 65536
    assert kernel.plan.stays == (warps == 16 or ctas > 1)
    if kernel.plan.stays:
        assert accesses(kernel) == {"st.global.v4.b32"}
        assert "cp.async.cg.shared.global" in ptx_of(kernel.module)
        assert "barrier.cluster.arrive.release" not in ptx_of(kernel.module)
    else:
        assert accesses(kernel) == WIDE


def test_draws_that_nothing_waits_for() -> None:
    """ptxas would add up the lanes that add to one counter, and wait for the result at once."""
    ptx = ptx_of(softmax_of(131072, BF16).module)
    draws = re.findall(r"^\s*@\w+ atom\.relaxed\.gpu\.global\.inc\.u32", ptx, re.MULTILINE)
    assert len(draws) == 2  # before the first program, and with each one
    assert "global.add" not in ptx


@pytest.mark.parametrize("made", [softmax_of, norm_of])
def test_messages_of_a_cluster(made: Callable[..., Kernel]) -> None:
    """Lanes send to a block each; waiting for what comes in does not empty the SM's L1."""
    kernel = made(131072, BF16)
    ptx = ptx_of(kernel.module)
    assert len(re.findall(r"^\s*st\.async", ptx, re.MULTILINE)) == 4  # two sums, two programs
    assert "acquire.cluster.shared::cta" not in ptx


@pytest.mark.parametrize(("n", "dtype"), [(4096, BF16), (8192, F32)], ids=str)
def test_gradients_of_full_rows_keep_masks_and_addresses(n: int, dtype: torch.dtype) -> None:
    """Masks keep loads and copies in front of the work of a row; the others are slower (0.88 for 0.92)."""
    kernel = gradient_of(n, dtype)
    text = kernel.module.source.partition("norm_backward(")[2]
    head, loop, body = text.partition("for (int row")
    assert loop
    assert "int n_cols" in head
    for call in ("Filled", "Masked"):
        assert len(re.findall(rf"{call}Lane<\w+>{{.*, inside_\d+", body)) >= 1
        assert not re.search(rf"{call}Lane<\w+>{{.*, true", text)
    assert "mul_wide(" not in text
    assert "(int)(threadIdx.x" not in text
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0


def test_loops_of_losses_have_one_path_and_no_pairs() -> None:
    """Running maxima one by one, one loop: with pairs and a path for one iteration 0.83 to 0.9 of the speed."""
    text = loss_of(32000, BF16).module.source.partition("cross_entropy_forward(")[2]
    loop = text.partition("for (int start")[2]
    assert loop
    assert "} else {" not in loop.partition("float highest")[0].partition("copy(x")[2]
    assert "reduce_pairs<" not in text
    assert text.count("reduce_registers<8>") == 2
    assert "reduce_pairs<" in softmax_of(4096, BF16).module.source.partition("softmax_kernel(")[2]


@pytest.mark.parametrize("n", [256, 512])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_short_rows(n: int, dtype: torch.dtype) -> None:
    """Sixteen warps on an SM hold 4 KB of rows each, and what these share, in 128 registers a thread."""
    kernel = norm_of(n, dtype)
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    assert kernel.plan.num_warps * kernel.plan.min_blocks == 16
    assert kernel.compiled.registers <= 128


def test_columns_share_an_address() -> None:
    """Vectors of a row lie at constant distances: four CTAs with 32 elements a thread spill nothing."""
    x, w, rstd = empty(ROWS, 8192, dtype=BF16), empty(8192, dtype=BF16), empty(ROWS, dtype=F32)
    args = (x, x, w, w, rstd, rstd, 8192, ROWS, 8192, 1e-5, False, 1, 8192)
    kernel = norms.norm_forward.compile(*args, grid=(ROWS,))
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.compiled is not None
    assert (kernel.plan.min_blocks, kernel.compiled.spill_bytes) == (4, 0)


def test_programs_that_do_not_stay() -> None:
    """Each program is launched, loads into registers, and waits at the cluster's barrier."""
    x = empty(ROWS, 131072, dtype=BF16)
    args = (x, x, 131072, 131072, ROWS, 131072, 1, 131072)
    kernel = softmax.softmax_kernel.compile(*args, grid=(ROWS,), persistent=False)
    assert kernel.module.grid.mode == "plain"
    assert "cluster_sync" in kernel.module.source
    assert accesses(kernel) == WIDE


def test_rows_at_odd_addresses_are_read_in_vectors() -> None:
    """No exchange between threads for the sake of vectors that weight and bias alone allow."""
    kernel = norm_of(50257, BF16)
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.plan.num_ctas == 4
    assert "load_fetched_shifted" in kernel.module.source
    assert kernel.module.source.count(" read_segment<") == 2  # weight and bias, once for all rows
    assert not any("not fetched" in note for note in kernel.notes)
    assert not any("converted" in note for note in kernel.notes)


@pytest.mark.parametrize("n", [1024, 4096, 8192, 16384, 32768])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_gradient_of_norm(n: int, dtype: torch.dtype) -> None:
    """Rows come through shared memory, 16 KB for a CTA; both sums in one exchange."""
    kernel = gradient_of(n, dtype)
    assert isinstance(kernel.plan, SinglePlan)
    row_bytes = n * dtype.itemsize
    ctas = max(1, row_bytes // 16384)
    assert (kernel.plan.num_warps, kernel.plan.num_ctas) == (4 if n == 1024 else 16, ctas)
    assert kernel.plan.min_blocks == (8 if n == 1024 else max(1, 16384 // row_bytes))
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes <= FEW_SPILLS
    assert any("ahead through cp.async" in note for note in kernel.notes)
    assert accesses(kernel) == {*WIDE, "ld.global.b32"}
    source = kernel.module.source
    assert source.count("reduce_cluster") == (ctas > 1)
    assert "prefetch_lanes" not in source
    assert "cluster_sync" not in source
    # In a cluster the next row's scalars do not wait behind copies of later rows.
    loop = source[source.index("for (int row_1") :]
    before, _, after = loop.partition("cp_async_wait")
    assert ("warp_sync();" in before) == (ctas > 1)
    assert "load_one" in before
    assert "load_one" not in after


@pytest.mark.parametrize(("stages", "slots"), [(1, 1), (3, 3), (100, 7)])
def test_rows_ahead_as_asked(stages: int, slots: int) -> None:
    """`num_stages` is followed as far as shared memory goes."""
    kernel = gradient_of(8192, BF16, num_stages=stages)
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.plan.num_stages == slots
    assert any("no more fit" in note for note in kernel.notes) == (stages > slots)
    assert not any("is ignored" in note for note in kernel.notes)


@pytest.mark.parametrize("n", [33333, 50257])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("centred", [False, True])
def test_gradient_of_odd_rows(n: int, dtype: torch.dtype, centred: bool) -> None:
    """What a loop accesses is accessed in vectors by the CTAs that share a row."""
    kernel = gradient_of(n, dtype, centred=centred)
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.plan.num_ctas == 8
    source = kernel.module.source
    loop = source[source.index("for (int row") :]
    assert "store_shifted" in loop
    assert "load_fetched_shifted" in loop
    lies = [note for note in kernel.notes if "is accessed as it lies" in note]
    assert len(lies) == (1 + centred) * (dtype == BF16)
    assert all("norms.py:6" in note for note in lies)  # parts of weight and bias, after the loop


@pytest.mark.parametrize("n", [33333, 50257])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("made", [softmax_of, norm_of, loss_of, loss_gradient_of])
def test_odd_rows(made: Callable[..., Kernel], n: int, dtype: torch.dtype) -> None:
    kernel = made(n, dtype)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes <= FEW_SPILLS
    assert re.search("load_(fetched_)?shifted", kernel.module.source)


def test_cross_entropy() -> None:
    kernel = loss_of(32000, BF16)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    assert "ld.global.v4.b32" in accesses(kernel)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_transposed_to_odd_rows(dtype: torch.dtype) -> None:
    """Four CTAs of 8 warps are on an SM, which takes 64 registers."""
    x, y = empty(6103, 4096, dtype=dtype), empty(4096, 6103, dtype=dtype)
    rows = 256 // dtype.itemsize
    kernel = transpose.transpose_kernel.compile(x, y, rows, 64, grid=(96, 64))
    assert any("whole sectors" in note for note in kernel.notes)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    assert kernel.compiled.registers <= 64
    assert "st.global.v4.u32" in accesses(kernel)


def test_both_sides_of_a_transposition_have_vectors() -> None:
    x = empty(4096, 4096, dtype=BF16)
    kernel = transpose.transpose_kernel.compile(x, x, 64, 64, grid=(64, 64))
    assert any("converted" in note for note in kernel.notes)
    assert "store_vector<8>" in kernel.module.source
    assert "load_vector<8>" in kernel.module.source
