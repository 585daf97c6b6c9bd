"""The emulation against the device: the same text on the same bytes, for every example kernel.

The same bits where the order of sums cannot matter: elementwise, layout and integer kernels, and products
of small integers, whose sums are exact in f32. On random inputs within the rounding of the output.
What the emulation says of a kernel on the CPU is worth what this test shows.
"""

from __future__ import annotations

import shutil

import pytest

from tests.emulation.comparing import compare
from tests.emulation.example_cases import CASES
from tests.emulation.example_cases import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation needs g++"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_emulation_computes_what_the_device_does(case: Case) -> None:
    assert not compare(case, "cuda")
