"""The examples in the emulation: the interpreter's bits where no sum has an order.

Those that other files of this folder run are left out unless asked for with -m slow.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulation.comparing import compare
from tests.emulation.example_cases import CASES
from tests.emulation.example_cases import ROWS
from tests.emulation.example_cases import Case
from tests.emulation.recorded import differences
from tests.emulation.recorded import distance

ONLY_HERE = {"vector_add", "matmul", "relu", "batched", "dropout", "plain causal"}
ALWAYS = [c for c in CASES if c in ROWS or c.name in ONLY_HERE]
SLOW = [pytest.param(c, marks=pytest.mark.slow) for c in CASES if c not in ALWAYS]


@pytest.mark.parametrize("case", [*ALWAYS, *SLOW], ids=str)
def test_agrees_with_the_interpreter(case: Case) -> None:
    assert not compare(case, "cpu")


def test_the_comparison_sees_a_difference() -> None:
    a = np.array([0.0, 1.0, np.nan], np.float32)
    assert differences(a, np.array([-0.0, 1.0, np.nan], np.float32)) == 0
    assert differences(a, np.array([0.0, np.nextafter(np.float32(1), 2), 0.0], np.float32)) == 2
    assert distance(a, np.array([0.0, 1.5, np.nan], np.float32)) == 0.5
    assert distance(a, np.array([0.0, 1.0, 0.0], np.float32)) == float("inf")
