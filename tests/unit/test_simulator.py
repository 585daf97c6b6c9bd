"""Simulations that take what a launch takes: tensors of torch, numbers, grids of every form."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.grouped_list import grouped_list
from tests.gpu.matmul_kernels import matmul
from tests.pointer_kernels import matmul as pointer_matmul
from tiledsl import TensorDescriptor
from tiledsl.emulate import EmulationFault
from tiledsl.emulate import NotEmulated
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import TensorView
from tiledsl.runtime.interop import StorageView
from tiledsl.simulator import emulate
from tiledsl.simulator import simulate
from tiledsl.simulator import step
from tiledsl.simulator import view_array

BF16 = torch.bfloat16
TILE = {"BM": 64, "BN": 64, "BK": 64}


def tensors(m: int, n: int, k: int, dtype: torch.dtype = BF16) -> dict[str, torch.Tensor]:
    """A product of small integers, exact in every order of sums; the result is NaN."""
    generator = torch.Generator().manual_seed(m)
    a, b = (torch.randint(-4, 5, s, generator=generator) for s in ((m, k), (k, n)))
    return {"a": a.to(dtype), "b": b.to(dtype), "c": torch.full((m, n), torch.nan, dtype=dtype)}


def is_right(given: dict[str, torch.Tensor]) -> bool:
    want = (given["a"].float() @ given["b"].float()).to(given["c"].dtype)
    return torch.equal(given["c"], want)


@pytest.fixture(scope="module")
def kernel():
    return matmul.compile(**tensors(128, 64, 128), grid=(2, 1), **TILE)


def test_a_grid_has_every_form_of_a_launch(kernel) -> None:
    for grid in ((2, 1), (2,), 2, (2, 1, 1), lambda meta: (128 // meta["BM"], 1)):
        given = tensors(128, 64, 128)
        simulate(kernel, given, grid, seed=3)
        assert is_right(given), grid
    with pytest.raises(LaunchError, match="grid must be one to three ints"):
        simulate(kernel, tensors(128, 64, 128), (2, 1, 1, 1))


def test_a_run_stops_and_its_slots_hold_what_the_tensors_hold(kernel) -> None:
    given = tensors(128, 64, 128)
    run = step(kernel, given, (2, 1), seed=1)
    stop = run.until(role="consumer", op="mma.wait")
    assert stop is not None
    np.testing.assert_array_equal(run.slot("a", 0).data.astype("f4"), given["a"][:64, :64].float())
    assert run.until(op="no such op") is None
    assert is_right(given)


def test_arguments_that_do_not_fit_are_named(kernel) -> None:
    given = tensors(128, 64, 128)
    with pytest.raises(LaunchError, match="arguments missing: c"):
        simulate(kernel, {"a": given["a"], "b": given["b"]}, (2, 1))
    with pytest.raises(LaunchError, match="b: expected bfloat16, got float32"):
        simulate(kernel, {**given, "b": given["b"].float()}, (2, 1))
    with pytest.raises(LaunchError, match=r"result of kernel.compile\(...\), got JitFunction"):
        simulate(matmul, given, (2, 1))  # type: ignore[arg-type]
    single = matmul.compile(**given, grid=(2, 1), warp_specialize=False, **TILE)
    with pytest.raises(LaunchError, match="has a single role"):
        simulate(single, given, (2, 1))


def test_pointers_and_the_tensors_that_they_are() -> None:
    given = tensors(70, 64, 96, torch.float16)
    a, b, c = given.values()
    sizes = {"M": 70, "N": 64, "K": 96}
    strides = dict(zip(("stride_am", "stride_ak"), a.stride(), strict=True))
    strides |= dict(zip(("stride_bk", "stride_bn"), b.stride(), strict=True))
    strides |= dict(zip(("stride_cm", "stride_cn"), c.stride(), strict=True))
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": c, **sizes, **strides}
    blocks = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    made = pointer_matmul.compile(**args, **blocks, grid=(2,))
    assert made.machine is not None
    assert made.machine.facts["views"]
    simulate(made, args, (2,))
    assert is_right(given)


@pytest.mark.parametrize("strides", [(160, 1), (1, 160)])
def test_unchecked_extents_go_as_far_as_rows_and_memory_do(strides: tuple[int, int]) -> None:
    view = TensorView("view", "p", tl.float16, (None, None), strides)
    made = view_array(view, StorageView(np.arange(40 * 160, dtype=np.float16), 0), {})
    assert made.shape == ((40, 160) if strides[1] == 1 else (160, 40))


PIECES = [((None, None, 80), (80, 80, 1)), ((None, 80, None), (80, 1, 80))]


@pytest.mark.parametrize(("extents", "strides"), PIECES, ids=str)
def test_rows_of_one_piece(extents: tuple[int | None, ...], strides: tuple[int, ...]) -> None:
    """Rows that are cut into pieces go on as far as the memory does, not the pieces."""
    view = TensorView("view", "p", tl.float16, extents, strides)
    made = view_array(view, StorageView(np.arange(48 * 80, dtype=np.float16), 0), {})
    assert sorted(made.shape) == [1, 48, 80]
    assert made.shape[0] == 1


def test_lists_of_tensors() -> None:
    problems = [tensors(m, 64, 64) for m in (64, 100)]
    args = {name: [p[name] for p in problems] for name in "abc"}
    made = grouped_list.compile(**args, grid=(3,), **TILE)
    simulate(made, args, (3,))
    assert all(map(is_right, problems))


# ---------------------------------------------------------------------- the emitted text
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
def test_the_text_of_kernels_with_and_without_roles_runs(kernel) -> None:
    single = matmul.compile(**tensors(128, 64, 128), grid=(2, 1), warp_specialize=False, **TILE)
    for made in (kernel, single):
        given = tensors(128, 64, 128)
        emulate(made, given, lambda meta: (128 // meta["BM"], 1), seed=2)
        assert is_right(given)


@needs_compiler
def test_the_text_takes_pointers_lists_and_descriptors() -> None:
    x, y = torch.arange(100.0), torch.zeros(100)
    args = {"x": x, "y": y, "n": 100}
    emulate(shifted.compile(**args, BLOCK=128, grid=(1,)), args, (1,))
    assert torch.equal(y, x + 1)
    a, b = torch.rand(32, 64), torch.zeros(32, 64)
    lists = {"a": [a, 2 * a], "b": [b, b.clone()]}
    emulate(doubled.compile(**lists, grid=(2,)), lists, (2,))
    assert torch.equal(lists["b"][1], 4 * a)
    descriptor = TensorDescriptor.from_tensor(a, [32, 64])
    given = {"x": descriptor, "y": b}
    emulate(copied.compile(**given, grid=(1,)), given, (1,))
    assert torch.equal(b, a)


@needs_compiler
def test_the_text_refuses_what_does_not_fit(kernel) -> None:
    given = tensors(128, 64, 128)
    with pytest.raises(LaunchError, match="b: expected bfloat16, got float32"):
        emulate(kernel, {**given, "b": given["b"].float()}, (2, 1))
    with pytest.raises(LaunchError, match="argument c is missing"):
        emulate(kernel, {"a": given["a"], "b": given["b"]}, (2, 1))
    with pytest.raises(LaunchError, match="got JitFunction"):
        emulate(matmul, given, (2, 1))  # type: ignore[arg-type]
    args = {"x": torch.arange(100.0), "y": torch.zeros(100), "n": 100}
    made = shifted.compile(**args, BLOCK=128, grid=(1,))
    with pytest.raises(EmulationFault, match="16 bytes at byte 400 of argument x, which has 400"):
        emulate(made, {**args, "n": 120}, (1,))


@tiledsl.jit
def shifted(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@tiledsl.jit
def doubled(a: tl.TensorList, b: tl.TensorList):
    g = tl.program_id(0)
    b[g].store((0, 0), 2 * a[g].load((0, 0), (32, 64)))


@tiledsl.jit
def copied(x: tl.Tensor, y: tl.Tensor):
    y.store((0, 0), x.load((0, 0)))


@tiledsl.jit
def asserting(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    tl.device_assert(b.shape[0] == a.shape[1], "rows of b are columns of a")
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 64
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (64, 64)), b.load((k, n), (64, 64)), acc)
    c.store((m, n), acc)


@pytest.mark.parametrize("run", [simulate, step, emulate])
def test_what_a_kernel_asserts_of_extents_is_checked(run) -> None:
    made = asserting.compile(**tensors(128, 64, 128), grid=(2, 1))
    given = {**tensors(128, 64, 128), "b": torch.zeros(64, 64, dtype=BF16)}
    with pytest.raises(
        LaunchError, match=r"rows of b are columns of a \(64 == 128 does not hold\)"
    ):
        run(made, given, (2, 1))
    assert given["c"].isnan().all()


@tiledsl.jit
def moved(x, y, n, BLOCK: tl.constexpr = 64, by: tl.float32 = 1.0):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, value + by, mask=at < n)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_arguments_are_taken_in_the_order_of_the_parameters(kernel) -> None:
    given = tensors(128, 64, 128)
    simulate(kernel, (given["a"], given["b"], given["c"]), (2, 1))
    assert is_right(given)
    x, y = torch.arange(100.0), torch.zeros(100)
    made = moved.compile(x, y, 100, grid=(2,))
    emulate(made, (x, y, 100), (2,))
    assert torch.equal(y, x + 1)
    emulate(made, [x, y, 100, 64, 2.0], 2)
    assert torch.equal(y, x + 2)


def test_the_runs_are_found_after_the_first_import_without_its_cost() -> None:
    text = (
        "import sys, tiledsl\n"
        "assert not {'tiledsl.simulator', 'tiledsl.emulate'} & set(sys.modules)\n"
        "assert tiledsl.simulator.emulate.__module__ == 'tiledsl.simulator'\n"
        "assert tiledsl.emulate.EmulationFault.__mro__[1] is tiledsl.TileError\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True)


def test_arguments_that_are_no_arguments_are_refused(kernel) -> None:
    given = tensors(128, 64, 128)
    for run in (simulate, step, emulate):
        with pytest.raises(LaunchError, match="expected a dictionary by name, or a tuple, got Te"):
            run(kernel, given["a"], (2, 1))  # type: ignore[arg-type]
        with pytest.raises(LaunchError, match="too many positional arguments"):
            run(kernel, (given["a"],) * 7, (2, 1))
        with pytest.raises(LaunchError, match="a is on meta: simulations and the emulation run"):
            run(kernel, {**given, "a": given["a"].to("meta")}, (2, 1))


@tiledsl.jit
def added(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    more = tl.inline_asm_elementwise(
        "add.f32 $0, $1, $2;", "=f,f,f", [value, value], tl.float32, True, 1
    )
    tl.store(y + at, more)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_assembly_without_an_emulation_is_named_with_its_line() -> None:
    x, y = torch.ones(64), torch.zeros(64)
    made = added.compile(x, y, 64, grid=(1,))
    line = added.fn.__code__.co_firstlineno + 4
    with pytest.raises(
        NotEmulated, match=rf"add.f32 has no emulation \(test_simulator.py:{line}\)"
    ):
        emulate(made, (x, y), (1,))
