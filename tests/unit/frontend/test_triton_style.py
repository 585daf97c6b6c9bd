"""Kernels as Triton's users write them, in the interpreter against torch."""

from __future__ import annotations

import pytest

from tests.triton_style.cases import Case
from tests.triton_style.cases import check
from tests.triton_style.cases import copied
from tests.triton_style.cases import launch
from tests.triton_style.kernels import CASES


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: Case) -> None:
    args = case.make()
    want = case.want(*copied(args))
    launch(case, args)
    check(case, args, want)


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
