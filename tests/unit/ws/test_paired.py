"""Rows of a right operand in pairs: the product is rounded into the next left operand as it lies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SmemType
from tiledsl.ws.check import check
from tiledsl.ws.simulate import simulate

E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
FAST = 1 << 20


# fmt: off
@tiledsl.jit
def squares(x: tl.Tensor, y: tl.Tensor, vt: tl.Tensor, o: tl.Tensor, start, FORM: tl.constexpr,
            D: tl.constexpr = 128, BM: tl.constexpr = 128, BN: tl.constexpr = 64):
    """o = squares of (x y^T), rounded, times v."""
    m = tl.program_id(0) * BM
    left = x.load((m, 0), (BM, D))
    acc = tl.zeros((BM, D), tl.float32)
    more = tl.zeros((BM, BN), tl.float32)
    for n in range(0, y.shape[0], BN):
        at = n + start if FORM == "offset" else n
        right = y.load((at, 0), (BN, D))
        s = tl.dot(left, tl.trans(right), max_num_imprecise_acc=FAST)
        if FORM == "carried":
            more += s
        if FORM == "read":
            s += tl.sum(right.to(tl.float32), 1)[None, :]
        p = s * s
        if FORM == "sums":
            p += more
        small = p.to(tl.float8e4nv)
        acc = tl.dot(small, tl.trans(vt.load((0, n), (D, BN))), acc, max_num_imprecise_acc=FAST)
        if FORM == "twice":
            acc += tl.sum(small.to(tl.float32), 1)[:, None]
    if FORM == "carried":
        acc += tl.sum(more, 1)[:, None]
    o.store((m, 0), acc)
# fmt: on


def compiled(form: str = "", rows: int = 256, **options: Any) -> Kernel:
    x, y = (torch.empty(n, 128, device="meta", dtype=torch.float8_e4m3fn) for n in (256, rows))
    vt = torch.empty(128, 256, device="meta", dtype=torch.float8_e4m3fn)
    o = torch.empty(256, 128, device="meta", dtype=torch.bfloat16)
    return first(squares.request_for((x, y, vt, o, 3, form), options, (2,))[1])


def is_paired(kernel: Kernel) -> bool:
    assert kernel.machine is not None
    assert kernel.certificate is not None
    assert kernel.certificate.proved
    types = [op.type_ for op in kernel.machine.find(smem.Buffer)]
    found = any(isinstance(t, SmemType) and t.paired for t in types)
    assert bool(kernel.machine.find(mma.Spread)) != found
    return found


@pytest.mark.parametrize("options", [{}, {"BM": 192, "BN": 96}, {"num_consumers": 1}], ids=str)
def test_rows_of_the_first_right_operand_are_paired(options: dict[str, int]) -> None:
    kernel = compiled(**options)
    assert is_paired(kernel)
    assert kernel.machine is not None
    maps = [op for op in kernel.machine.find(tma.TensorMap) if op.dims.count(0) == 2]
    assert [(op.dims, op.box) for op in maps] == [((1, 0, 0), (128, 2, options.get("BN", 64) // 4))]
    loads = [op for op in kernel.machine.find(tma.Load) if op.map is maps[0].result]
    half = options.get("BN", 64) // 2 * 128
    assert [op.offset_bytes for op in loads] == [0, half]


@pytest.mark.parametrize(
    ("form", "rows", "why"),
    [
        ("", 254, "the rows of y do not come in fours"),
        ("carried", 256, "goes beyond the iteration"),
        ("read", 256, ""),
        ("twice", 256, "others than products read the rounded tile"),
        ("offset", 256, "the first row of right may be no multiple of 4"),
    ],
)
def test_what_keeps_rows_in_their_order(form: str, rows: int, why: str) -> None:
    kernel = compiled(form, rows)
    assert kernel.machine is None or not kernel.machine.find(mma.Issue) or not is_paired(kernel)
    notes = [n for n in kernel.notes if "bytes of the left operand move" in n]
    assert why in "".join(notes)
    assert all("test_paired.py:" in n for n in notes)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y, v = ((rng.standard_normal((256, 128)) / 4).astype(E4M3) for _ in range(3))
    return {"x": x, "y": y, "vt": np.ascontiguousarray(v.T), "start": 3}


@pytest.mark.parametrize("BN", [64, 96])
def test_simulation_gives_the_result(BN: int) -> None:
    args = arrays()
    x, y, vt = (args[n].astype(np.float32) for n in ("x", "y", "vt"))
    want = ((x @ y.T) ** 2).astype(E4M3).astype(np.float32) @ vt.T
    o = np.full((256, 128), np.nan, BF16)
    kernel = compiled(BN=BN)
    assert kernel.machine is not None
    simulate(kernel.machine, {**args, "o": o}, (2, 1, 1), seed=1)
    assert np.abs(o.astype(np.float32) - want).max() <= 2.0**-6 * np.abs(want).max()


def test_a_half_that_is_not_loaded_is_found() -> None:
    kernel = compiled()
    assert kernel.machine is not None
    load = next(op for op in kernel.machine.find(tma.Load) if op.offset_bytes)
    kernel.machine.erase(load)
    assert not check(kernel.machine).proved
