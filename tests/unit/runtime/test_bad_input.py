"""Arguments that cannot be right, each with its message; on the CPU and with a faked driver."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.runtime.manifest_kernels import matmul
from tests.unit.runtime.manifest_kernels import scale
from tiledsl.errors import LaunchError
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.ir.analysis.stored import stored_arguments
from tiledsl.runtime import signature as signature_module
from tiledsl.runtime.signature import Device

M = 128


@pytest.fixture(params=["interpreter", "driver"])
def place(request, monkeypatch):
    for kernel in (matmul, scale):
        kernel.forget()
    yield fake_driver.install(monkeypatch) if request.param == "driver" else None
    for kernel in (matmul, scale):
        kernel.forget()


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def tiles(meta):
    return tl.cdiv(M, meta["BM"]), tl.cdiv(M, meta["BN"])


def read_only():
    array = np.zeros(64, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"a": tensor(M)}, r"manifest_kernels.py:\d+:\d+: error: the index of a.shape must be in"),
        ({"c": tensor(1, M, M)}, r"c.store\(\): expected 3 offsets, one per dimension"),
        ({"b": tensor(M, M, dtype=torch.float16)}, r"dot\(\): a is tl.bfloat16 but b is"),
        ({"b": tensor(M, M, dtype=torch.complex64)}, "argument b: dtype torch.complex64 is not"),
        ({"c": tensor(1, M).expand(M, M)}, "argument c: the kernel stores to it, but several of"),
        (
            {"c": tensor(3 * M).as_strided((M, M), (1, 2))},
            "argument c: the kernel stores to it, but several of",
        ),
        ({"b": 3}, r"argument b: expected a tensor \(it is declared tl.Tensor\), got int"),
        (
            {"b": [tensor(M, M)]},
            r"argument b: expected a tensor \(a list needs tl.TensorList\), got list",
        ),
        ({"b": tensor(M, M).to_sparse()}, "argument b: expected a strided tensor, got layout"),
    ],
)
def test_tensors(place, change, text):
    given = {"a": tensor(M, M), "b": tensor(M, M), "c": tensor(M, M)} | change
    with pytest.raises(TileError, match=text):
        matmul[tiles](**given)
    if place is not None:
        assert place.launches == []


def test_a_tuple_cannot_follow_the_tile_that_is_picked(place):
    with pytest.raises(TileError, match="BM and BN are picked by the compiler"):
        matmul[1, 1](tensor(M, M), tensor(M, M), tensor(M, M))


@tiledsl.jit
def doubled(x, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@tiledsl.jit
def doubled_in_steps(x, o, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(o + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("auto", [tl.auto, tl.auto(64, 256)], ids=str)
def test_a_tuple_cannot_follow_what_the_number_of_a_program_is_multiplied_by(auto):
    """Whether `tl.auto` is the default of the parameter or given at launch."""
    x, o = torch.randn(1000), torch.zeros(1000)
    with pytest.raises(TileError, match="BLOCK is picked by the compiler"):
        doubled[(1,)](x, o, 1000, BLOCK=auto)
    meta = torch.empty(1000, device="meta")
    with pytest.raises(TileError, match="BLOCK is picked by the compiler"):
        doubled.report(meta, meta, 1000, BLOCK=auto, grid=(1,))
    doubled[lambda meta: (tl.cdiv(1000, meta["BLOCK"]),)](x, o, 1000, BLOCK=auto)
    torch.testing.assert_close(o, 2 * x)
    o.zero_()
    doubled_in_steps[(3,)](x, o, 1000, BLOCK=auto)  # any number of programs does all the work
    torch.testing.assert_close(o, 2 * x)


@tiledsl.jit
def counts(o, n: tl.int32):
    tl.store(o, n)


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 3.5, np.float32(2.0)], ids=str)
def test_numbers_that_a_parameter_cannot_hold(value):
    """As the launch on a GPU does."""
    with pytest.raises(LaunchError, match=r"argument n: .* does not fit i32"):
        counts[(1,)](torch.zeros(1, dtype=torch.int32), value)


def test_arrays_that_cannot_be_written(place):
    x, out = np.ones(64, np.float32), read_only()
    with pytest.raises(LaunchError, match="argument o: the kernel stores to it, but the array is"):
        scale[(1,)](x, out, 64, 64)
    assert not out.any()
    scale[(1,)](out, x, 64, 64)  # as an input


def test_inputs_may_share_memory(place):
    matmul[tiles](tensor(1, M).expand(M, M), tensor(M, M), tensor(M, M))


def test_other_devices(monkeypatch):
    fake_driver.install(monkeypatch)
    other = tensor(64, dtype=torch.float32)
    monkeypatch.setattr(
        signature_module, "device_of", lambda t: Device("cuda", 1 if t is other else 0)
    )
    with pytest.raises(LaunchError, match="argument o is on cuda:1 but argument x is on cuda:0"):
        scale[(1,)](tensor(64, dtype=torch.float32), other, 64, 64)
    monkeypatch.undo()
    with pytest.raises(LaunchError, match="argument o is on meta but argument x is on cpu"):
        scale[(1,)](torch.zeros(64), torch.zeros(64, device="meta"), 64, 64)


def test_a_misaligned_view_takes_another_path_or_says_why_not(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    a = tensor(M * M + 1)[1:].view(M, M)
    matmul[tiles](a, tensor(M, M), tensor(M, M))
    assert len(fake.launches) == 1
    assert "no legal tensor map" in matmul.report(a, tensor(M, M), tensor(M, M), grid=tiles)
    with pytest.raises(ScheduleError, match="no legal tensor map"):
        matmul[tiles](a, tensor(M, M), tensor(M, M), ping_pong=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.resize_(M, M // 2),
        lambda t: t.t_(),
        lambda t: t.resize_(M * 2, M // 2),
        lambda t: t.untyped_storage().resize_(0),
        lambda t: t.set_(tensor(M, M)),
    ],
    ids=["smaller", "transposed", "other extents", "freed", "other memory"],
)
def test_tensors_that_change_under_a_handle(monkeypatch, change):
    fake = fake_driver.install(monkeypatch)
    a, b, c = (tensor(M, M) for _ in range(3))
    handle = matmul.bind(a, b, c, grid=tiles)
    handle()
    change(b)
    with pytest.raises(LaunchError, match="argument b has other memory or extents than when"):
        handle()
    assert len(fake.launches) == 1


def test_a_handle_keeps_its_tensors(monkeypatch):
    fake = fake_driver.install(monkeypatch)
    tensors = [torch.zeros(64) for _ in range(2)]
    address = tensors[0].data_ptr()
    handle = scale.bind(*tensors, 64, BLOCK=64, grid=(1,))
    tensors.clear()
    handle()
    assert fake.launches[-1].value(0) == address


def test_what_a_kernel_stores_to():
    @tiledsl.jit
    def kernel(x, y, z: tl.Tensor, w: tl.Tensor, n):
        i = tl.arange(0, 64)
        p = y + i
        for k in range(0, n):
            tl.store(p + k * 64, tl.load(x + i) + z.load((0,), (64,)))
        w.store((0,), tl.load(y + i))

    from tiledsl.lowering import tile_graph

    vector = torch.zeros(64)
    call, request = kernel.request_for((vector, vector, vector, vector, 3), {}, (1,))
    assert stored_arguments(tile_graph(request, call.constants)) == ("y", "w")
