"""The memory-bound examples in the interpreter against torch in fp64: odd widths, strides, gradients."""

from __future__ import annotations

import pytest

from tests.unit.examples.memory_bound import Case
from tests.unit.examples.memory_bound import cases


@pytest.mark.parametrize("case", cases((1, 7, 5000, 50257), 3), ids=str)
def test_agrees_with_torch(case: Case) -> None:
    case.check("cpu")
