"""What a launch does per argument, counted in calls instead of time."""

from __future__ import annotations

import linecache
import sys
from collections import Counter

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import LaunchError

N = 256


def kernel_of(count: int, *, in_turn: bool = False):
    """A kernel of so many tensors, and as many integers, after them or between them."""
    names = [f"x{i}" for i in range(count)]
    numbers = [f"n{i}" for i in range(count)]
    listed = [*names, *numbers]
    if in_turn:
        listed = [name for pair in zip(numbers, names, strict=True) for name in pair]
    loads = " + ".join(
        f"tl.load({x} + i, mask=i < {n})" for x, n in zip(names, numbers, strict=True)
    )
    text = f"""\
@tiledsl.jit
def total({", ".join(listed)}, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x0 + i, {loads})
"""
    file = f"<total {count} {in_turn}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made = {"tiledsl": tiledsl, "tl": tl, "__name__": file}
    exec(compile(text, file, "exec"), made)
    return made["total"]


def calls_of(function) -> Counter:
    """Calls of Python and C functions by name."""
    found: Counter = Counter()

    def seen(frame, event, arg):
        if event == "c_call":
            found[arg.__name__] += 1
        elif event == "call":
            found[frame.f_code.co_name] += 1

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    del found["setprofile"]
    return found


@pytest.fixture
def fake(monkeypatch):
    return fake_driver.install(monkeypatch, one_device=True)


def test_an_argument_adds_one_call(fake):
    calls = {}
    for count in (1, 4, 16):
        kernel, xs = kernel_of(count), [torch.zeros(N) for _ in range(count)]
        for _ in range(2):
            kernel[(1,)](*xs, *[N] * count, N)
        calls[count] = calls_of(lambda: kernel[(1,)](*xs, *[N] * count, N))  # noqa: B023
        assert calls[count].pop("data_ptr") == count
    assert calls[4] == calls[16], "more than the address of each tensor is asked for"
    few, many = calls[1].total(), calls[16].total()
    assert many <= few + 1, "the alignment of several is one look"


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_alignment_of_each_tensor_is_told_on_the_fast_path(fake, monkeypatch, count, in_turn):
    kernel = kernel_of(count, in_turn=in_turn)
    xs = [torch.zeros(2 * N) for _ in range(count)]
    asked = []

    def arguments(tensors):
        if in_turn:
            return [value for x in tensors for value in (N, x)]
        return [*tensors, *[N] * count]

    def address(at):
        return fake.launches[-1].value(2 * at + 1 if in_turn else at)

    def grid(meta):
        asked.append(dict(meta))
        return (1,)

    for _ in range(2):
        kernel[grid](*arguments(xs), N)
    assert len(kernel.history) == 1
    for at in range(count):  # 4 bytes on
        moved = [x[1 : N + 1] if i == at else x for i, x in enumerate(xs)]
        for _ in range(2):
            kernel[grid](*arguments(moved), N)
            assert address(at) == xs[at].data_ptr() + 4
        assert len(kernel.history) == 2 + at
    monkeypatch.setattr(kernel, "_launch", lambda *_: pytest.fail("slow path"))
    first = fake.launches[0].function
    for step in (4, 8, 32):  # 16, 32 and 128 bytes on: as aligned as before
        moved = [x[step : N + step] for x in xs]
        kernel[grid](*arguments(moved), N)
        assert fake.launches[-1].function == first
        assert [address(at) for at in range(count)] == [x.data_ptr() for x in moved]


def test_what_has_no_address_goes_the_slow_way(fake):
    """The fast path asks for addresses last, after all that it compares."""
    kernel, (x, y) = kernel_of(2), (torch.zeros(N), torch.zeros(N))
    for _ in range(2):
        kernel[(1,)](x, y, N, N, N)

    class Lost(torch.Tensor):
        def data_ptr(self):
            raise RuntimeError("no storage")

    with pytest.raises(LaunchError, match="argument x1: a Lost without an address: no storage"):
        kernel[(1,)](x, y.as_subclass(Lost), N, N, N)
    kernel[(1,)](x, y, N, N, N)
    assert [fake.launches[-1].value(at) for at in range(2)] == [x.data_ptr(), y.data_ptr()]


def test_a_call_for_another_program_asks_its_own_grid(fake):
    """The grid of the program that a call leaves is none of the one it comes to."""
    kernel, xs = kernel_of(5), [torch.zeros(2 * N) for _ in range(5)]
    seen = []

    def grid(meta):
        seen.append(meta["B"])
        return (N // meta["B"], len(seen))

    kernel[grid](*xs, *[N] * 5, 128)
    kernel[grid](*xs, *[N] * 5, 128)
    before = len(seen)
    kernel[grid](xs[0][1 : N + 1], *xs[1:], *[N] * 5, 128)
    assert fake.launches[-1].grid == (2, len(seen), 1)
    assert len(seen) > before
    # A number of more than 32 bits does not fit this program.
    kernel[grid](*xs, *[N] * 5, 128)
    before = len(seen)
    kernel[grid](*xs, 2**32 + N, *[N] * 4, 128)
    assert fake.launches[-1].grid == (2, len(seen), 1)
    assert len(seen) > before
