"""The memory-bound examples on the GPU against torch in fp64, up to rows that take a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.unit.examples.memory_bound import Case
from tests.unit.examples.memory_bound import cases

pytestmark = pytest.mark.gpu
WIDTHS = (1, 7, 256, 781, 1024, 4096, 5000, 5001, 8192, 16384, 32768, 33333, 50257, 65536, 131072)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """New memory is NaN, so that what no kernel writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("case", cases(WIDTHS, 37), ids=str)
def test_agrees_with_torch(case: Case) -> None:
    case.check("cuda")
