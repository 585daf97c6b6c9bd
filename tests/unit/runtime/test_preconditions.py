"""Assertions about extents are checked before a launch, in every build, and cost the kernel nothing."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError


# fmt: off
@tiledsl.jit
def scaled_copy(x: tl.Tensor, scales: tl.Tensor, y: tl.Tensor, B: tl.constexpr = 64):
    tl.device_assert(scales.shape[0] == tl.cdiv(x.shape[0], B), "scales: one for each block of x")
    tl.device_assert((y.shape[0] >= x.shape[0]) & (x.stride(0) == 1), "y holds x, x has no gaps")
    at = tl.program_id(0) * B
    y.store((at,), x.load((at,), (B,)) * scales.load((tl.program_id(0),), (1,)))


@tiledsl.jit
def gather(x: tl.Tensor, index: tl.Tensor, y: tl.Tensor, B: tl.constexpr = 64):
    rows = index.load((0,), (B,))
    tl.device_assert(rows < x.shape[0], "index beyond x")
    y.store((0,), rows.to(tl.float32))
# fmt: on


@pytest.fixture(params=["interpreter", "driver"])
def place(request, monkeypatch):
    scaled_copy.forget()
    yield fake_driver.install(monkeypatch) if request.param == "driver" else None
    scaled_copy.forget()


def launch(n: int, scales: int, out: int | None = None, step: int = 1) -> None:
    x = torch.ones(n * step)[::step]
    scaled_copy[(tl.cdiv(n, 64),)](x, torch.ones(scales), torch.empty(n if out is None else out))


@pytest.mark.usefixtures("place")
def test_a_launch_that_breaks_one_is_refused():
    launch(130, 3)
    with pytest.raises(LaunchError, match=r"one for each block of x \(2 == 3 does not hold\)") as e:
        launch(130, 2)
    assert "tl.device_assert(scales.shape[0]" in str(e.value)
    with pytest.raises(LaunchError, match=r"y holds x, .* \(129 >= 130 does not hold\)"):
        launch(130, 3, out=129)
    with pytest.raises(LaunchError, match=r"\(2 == 1 does not hold\)"):
        launch(130, 3, step=2)


def test_the_fast_path_knows_the_extents_that_were_checked(monkeypatch):
    """A second launch of equal extents is not checked again, one of other extents is."""
    scaled_copy.forget()
    fake = fake_driver.install(monkeypatch)
    launch(130, 3)
    with monkeypatch.context() as m:
        m.setattr(scaled_copy, "_check_asserts", lambda *_: pytest.fail("checked again"))
        launch(130, 3)
    with pytest.raises(LaunchError, match="one for each block"):
        launch(192, 4)
    assert len(fake.launches) == 2
    scaled_copy.forget()


def test_handles_and_compilation_check_too(monkeypatch):
    x, scales, y = (torch.empty(n, device="meta") for n in (130, 2, 130))
    with pytest.raises(LaunchError, match="one for each block"):
        scaled_copy.compile(x, scales, y)
    fake_driver.install(monkeypatch)
    with pytest.raises(LaunchError, match="one for each block"):
        scaled_copy.bind(torch.ones(130), torch.ones(2), torch.ones(130), grid=(3,))
    scaled_copy.forget()


def test_no_build_has_them_on_the_device():
    args = [torch.empty(n, device="meta") for n in (130, 3, 130)]
    for debug in (False, True):
        assert "assert" not in scaled_copy.cuda(*args, debug=debug).partition("extern")[2]


def test_what_depends_on_data_is_left_to_the_device():
    x, y = torch.zeros(10), torch.zeros(64)
    index = torch.full((64,), 10, dtype=torch.int32)
    with pytest.raises(TileError, match=r"device_assert failed in program .*: index beyond x"):
        gather[(1,)](x, index, y)
    args = [t.to("meta") for t in (x, index, y)]
    assert "index beyond x" in gather.cuda(*args, debug=True)
    assert "index beyond x" not in gather.cuda(*args)
