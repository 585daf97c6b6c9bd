"""Launches of tensors that are like those before, and of ones that only look so."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import TileError
from tiledsl.runtime import alike
from tiledsl.runtime.guard import MAX_LEARNT

N = 256


@pytest.fixture(params=["torch's guards", "attributes"])
def fake(request, monkeypatch):
    if request.param == "attributes":
        monkeypatch.setattr(alike, "_guards", lambda: None)
    return fake_driver.install(monkeypatch)


@pytest.fixture
def kernel():
    @tiledsl.jit
    def add(x, a: tl.Tensor, o, BLOCK: tl.constexpr = N):
        i = tl.arange(0, BLOCK)
        tl.store(o + i, tl.load(x + i) + a.load((0,), (BLOCK,)))

    return add


def tensors(n=N, dtype=torch.float32):
    return [torch.zeros(n, dtype=dtype) for _ in range(3)]


def no_slow_path(monkeypatch, kernel):
    monkeypatch.setattr(kernel, "_launch", lambda *_: pytest.fail("slow path"))


def test_torch_has_guards_here():
    assert alike._guards() is not None


def test_gradients_modes_and_aliases_take_the_fast_path(fake, kernel, monkeypatch):
    kernel[(1,)](*tensors())
    no_slow_path(monkeypatch, kernel)
    x, a, o = tensors()
    for _ in range(MAX_LEARNT):
        kernel[(1,)](x.requires_grad_(), a, o)
        kernel[(1,)](x, x, x)
        with torch.inference_mode():
            kernel[(1,)](*tensors())
        kernel[(1,)](torch.nn.Parameter(x), a, o)
    assert len(fake.launches) == 1 + 4 * MAX_LEARNT


@pytest.mark.parametrize(
    "change",
    [
        lambda x, a, o: setattr(x, "data", x.view(torch.int32)),
        lambda x, a, o: setattr(x, "data", torch.zeros(N, dtype=torch.float16)),
        lambda x, a, o: x.set_(torch.zeros(N + 1)[1:]),
        lambda x, a, o: setattr(a, "data", torch.zeros(N, 2)[:, 0]),
    ],
    ids=["dtype in place", "dtype", "alignment", "strides"],
)
def test_a_tensor_that_changes_is_another_call(fake, kernel, change):
    x, a, o = tensors()
    for _ in range(2):
        kernel[(1,)](x, a, o)
    assert len(kernel.history) == 1
    change(x, a, o)
    for _ in range(2):
        kernel[(1,)](x, a, o)
    assert len(kernel.history) == 2
    assert fake.launches[-1].function != fake.launches[0].function


def test_other_extents_reach_the_kernel(fake, monkeypatch):
    @tiledsl.jit
    def count(a: tl.Tensor, o):
        tl.store(o, a.shape[0] + a.shape[1])

    calls = [torch.zeros(*shape) for shape in ((8, 16), (8, 32), (16, 16))]
    o = torch.zeros(4, dtype=torch.int32)
    for a in calls:
        count[(1,)](a, o)
    no_slow_path(monkeypatch, count)
    for a in [*calls, *calls[:1] * 2]:
        count[(1,)](a, o)
        found = {fake.launches[-1].value(i) for i in range(3)}
        assert {*a.shape, o.data_ptr()} <= found


def test_what_is_no_tensor_is_told(fake, kernel):
    x, a, o = tensors()
    kernel[(1,)](x, a, o)
    for bad in ("x", [1.0], torch.float32):
        with pytest.raises(TileError, match="argument x"):
            kernel[(1,)](bad, a, o)


def test_no_tensor_is_kept_alive(fake, kernel):
    x, a, o = tensors()
    for _ in range(3):
        kernel[(1,)](x, a, o)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("low", [2**31 - 2**16, 2**31, 2**40, 2**63, -(2**31) - 16, -16])
def test_integers_of_other_divisors_take_other_programs(fake, low):
    """Also those that are no int32, and those below 0: vectors are aligned or not."""

    @tiledsl.jit
    def move(x, o, s, BLOCK: tl.constexpr = N):
        i = tl.arange(0, BLOCK)
        tl.store(o + i + s, tl.load(x + i + s))

    x, _, o = tensors()
    for value in (low, low + 1, low):
        move[(1,)](x, o, value)
    first, second, third = [launch.function for launch in fake.launches]
    assert first == third != second
