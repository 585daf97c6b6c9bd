"""Control flow that depends on results: the emitted text of kernels with roles and without."""

from __future__ import annotations

from typing import Any

import pytest

from tests.steered_kernels import DECLINED
from tests.steered_kernels import SPECIALISED
from tests.steered_kernels import agree
from tests.steered_kernels import interpreted
from tests.unit.ws.test_steered import RUNS
from tests.unit.ws.test_steered import first
from tests.unit.ws.test_steered import interpreted_copy
from tiledsl.simulator import emulate

CASES = {**SPECIALISED, **{f"declined {name}": case for name, case in DECLINED.items()}}
KERNELS: list[tuple[str, dict[str, Any]]] = RUNS + [(n, {}) for n in CASES if n not in SPECIALISED]


@pytest.mark.parametrize(("name", "options"), KERNELS, ids=str)
def test_values(name: str, options: dict[str, Any]) -> None:
    case, BM = CASES[name], 128 if options.get("num_consumers") == 2 else 64
    args = case.args()
    want, made = interpreted(case, args, BM), first(case, args, BM, **options)
    got = interpreted_copy(args)
    emulate(made, got, case.grid(args, BM), seed=len(name))
    agree(case, got, want)
