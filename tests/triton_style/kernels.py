"""All groups of kernels in one list."""

from __future__ import annotations

from tests.triton_style import attention
from tests.triton_style import losses
from tests.triton_style import matmuls
from tests.triton_style import norms
from tests.triton_style import online_softmax
from tests.triton_style import routing
from tests.triton_style.cases import Case

CASES: list[Case] = [
    *norms.CASES,
    *losses.CASES,
    *matmuls.CASES,
    *attention.CASES,
    *online_softmax.CASES,
    *routing.CASES,
]
