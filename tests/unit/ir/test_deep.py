"""Recursive analyses of chains of any length."""

from __future__ import annotations

import pytest

from tiledsl.ir.analysis.deep import deep


def test_calls_of_any_depth_are_made_once() -> None:
    calls: list[int] = []

    @deep
    def total(n: int) -> int:
        below = total(n - 1) + total(n - 2) if n > 1 else n
        calls.append(n)
        return below % 1000

    assert total(20_000) == total(20_000)
    assert calls == [*calls[:20_001], *calls[:20_001]]
    assert len(set(calls)) == 20_001


def test_errors_come_to_who_called() -> None:
    @deep
    def least(n: int) -> int:
        if n == 0:
            raise ValueError("the end")
        try:
            return least(n - 1)
        except ValueError:
            if n < 3000:
                raise
            return n

    assert least(5000) == 3000
    with pytest.raises(ValueError, match="the end"):
        least(2999)


def test_a_call_that_leads_back_to_itself_is_an_error() -> None:
    @deep
    def circle(n: int) -> int:
        return circle((n + 1) % 1000)

    with pytest.raises(RecursionError, match="circle leads to itself"):
        circle(0)
