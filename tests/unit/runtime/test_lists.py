"""Lists of tensors as arguments: what is refused, what shares a program, what the driver gets."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.grouped_list import grid_of
from examples.grouped_list import grouped_list
from examples.grouped_list import run
from tests.unit.runtime import fake_driver
from tiledsl import dtypes
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.ir.specs import spec_of
from tiledsl.runtime.lists import _merged


# fmt: off
@tiledsl.jit
def doubled(x: tl.TensorList, y: tl.TensorList, n: tl.int32, B: tl.constexpr = 64):
    g, at = tl.program_id(1), tl.program_id(0) * B
    y[g].store((at,), x[g].load((at,), (B,)) * n)


@tiledsl.jit
def clash(x: tl.TensorList, x_0: tl.Tensor, B: tl.constexpr = 64):
    x_0.store((0,), x[0].load((0,), (B,)))
# fmt: on


def some(*sizes: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.ones(n, dtype=dtype) for n in sizes]


@pytest.mark.parametrize(
    "shapes", [[(130, 136, 72), (0, 8, 8), (1, 200, 80)], [(5, 8, 16)]], ids=["three", "one"]
)
def test_products_in_the_interpreter(shapes):
    assert run(shapes, "cpu") <= 4e-3


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.ones(3), "argument x: expected a list of tensors, got Tensor"),
        ([], "argument x: expected 1 to 64 tensors, got 0"),
        (some(*[1] * 65), "argument x: expected 1 to 64 tensors, got 65"),
        ([torch.ones(3), 4], r"argument x\[1\]: expected a tensor, got int"),
        (
            [torch.ones(3), torch.ones(3).half()],
            r"argument x\[1\]: expected rank 1 and f32 as the tensors before, got rank 1 and f16",
        ),
        ([torch.ones(3), torch.ones(3, 3)], r"got rank 2 and f32"),
    ],
)
def test_lists_that_are_refused(x, text):
    with pytest.raises(LaunchError, match=text):
        doubled[(1, 2)](x, some(3, 3), 2)


def test_a_parameter_of_the_name_of_an_item_is_refused():
    with pytest.raises(LaunchError, match="which has a parameter 'x_0'"):
        clash[(1,)](some(64), torch.ones(64))


def test_lists_of_other_lengths_are_told_of_while_compiling():
    a, b, c = ([torch.zeros(8, 8).bfloat16()] * n for n in (2, 1, 2))
    with pytest.raises(TileError, match="lists of one length"):
        grouped_list[grid_of([(8, 8, 8)] * 2)](a, b, c)


def test_the_driver_gets_tables(monkeypatch):
    doubled.forget()
    fake = fake_driver.install(monkeypatch)
    x, y = some(70, 0, 200), some(70, 0, 200)
    for _ in range(2):
        doubled[(4, 3)](x, y, 2)
    handle = doubled.bind(x, y, 3, grid=(4, 3))
    handle()
    assert len(fake.launches) == 3
    program = next(iter(doubled._programs.values()))
    params = program.module.params
    named = [p for p in params if p.name]
    assert len(named) < len(params)
    launched = fake.launches[-1]
    for kind, fact in ((PointerParam, torch.Tensor.data_ptr), (ShapeParam, lambda t: t.shape[0])):
        at = next(i for i, p in enumerate(named) if isinstance(p, kind) and p.arg == "x_0")
        pointers = (ctypes.c_void_p * (at + 1)).from_address(launched.address)
        table = (ctypes.c_int64 * 3).from_address(pointers[at] or 0)
        assert list(table) == [fact(t) for t in x]
    doubled.forget()


def test_empty_tensors_do_not_change_what_is_known_of_the_others():
    shapes = [(64, 64, 64), (0, 64, 64), (64, 64, 64)]
    for count in (3, 1):
        a, b, c = (
            [torch.empty(s[i], s[j], device="meta", dtype=torch.bfloat16) for s in shapes[:count]]
            for i, j in ((0, 2), (2, 1), (0, 1))
        )
        report = grouped_list.report(a, b, c, grid=grid_of(shapes[:count]))
        assert "single role" not in report


def test_sixty_four_problems_compile():
    shapes = [(128 + 8 * i, 512, 256) for i in range(64)]
    a, b, c = (
        [torch.empty(s[i], s[j], device="meta", dtype=torch.bfloat16) for s in shapes]
        for i, j in ((0, 2), (2, 1), (0, 1))
    )
    made = grouped_list.compile(a, b, c, grid=grid_of(shapes), BM=128, BN=256)
    assert made.certificate is not None
    assert made.certificate.proved
    assert made.compiled is not None
    assert not made.compiled.spill_bytes
    assert "Table<TensorMap, 64> a_maps" in made.module.source


def test_rows_that_only_the_device_knows_are_not_taken_for_padding():
    """Nor are tiles of lists, of which each program loads others: large products are not bound by HBM."""
    shapes = [(4096, 4096, 4096)] * 4
    a, b, c = (
        [torch.empty(s[i], s[j], device="meta", dtype=torch.bfloat16) for s in shapes]
        for i, j in ((0, 2), (2, 1), (0, 1))
    )
    made = grouped_list.compile(a, b, c, grid=grid_of(shapes))
    assert made.cost is not None
    assert made.cost.bottleneck == "tensor core"
    assert made.constants["BM"] * made.constants["BN"] >= 128 * 192


def test_what_holds_for_one_tensor_of_a_list_is_not_taken_for_all():
    """Each in turn is the one that differs: rows in fours, whole rows, a pitch without a map."""
    fp8 = dtypes.float8e4nv
    whole, other = spec_of(fp8, (64, 64)), spec_of(fp8, (63, 72), (80, 1))
    cut = spec_of(fp8, (64, 72), (80, 1))
    assert (whole.fours, whole.ragged, other.fours, cut.ragged) == (True, False, False, True)
    mapless = [spec_of(fp8, (64, 64), (pitch, 1)) for pitch in (72, 68)]
    assert [s.pitch_bytes for s in mapless] == [8, 4]
    for specs in itertools.permutations([whole, other, cut]):
        merged = _merged(list(specs))
        assert not merged.fours
        assert merged.ragged
    for specs in itertools.permutations([whole, *mapless]):
        merged = _merged(list(specs))
        assert not merged.tma
        assert merged.pitch_bytes == 4
