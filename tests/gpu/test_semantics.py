"""The rows of docs/semantics.md on the GPU: the tests of the interpreter, with tensors of the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.frontend import test_dots as dots
from tests.unit.frontend import test_map_elementwise as mapped
from tests.unit.frontend import test_semantics as semantics

pytestmark = pytest.mark.gpu
# Errors of the interpreter, and rules of the frontend alone.
ELSEWHERE = ("test_every_row_has_a_test", "test_step_of_zero")
ROWS = [n for n in vars(semantics) if n.startswith("test_") and n not in ELSEWHERE]


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    test: Any = getattr(semantics, name)
    with torch.device("cuda"):
        for arguments in ([None], [9.0]) if name == "test_blocks_outside" else ([],):
            test(*arguments)


CPU_BYTES = dots.bytes_of


def bytes_on_gpu(*shape: int, **options: int) -> torch.Tensor:
    """The same numbers on every device."""
    with torch.device("cpu"):
        made = CPU_BYTES(*shape, **options)
    return made.cuda()


@pytest.mark.parametrize("k_pack", [True, False])
def test_scaled_e2m1(k_pack: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dots, "FP4", dots.FP4.cuda())
    monkeypatch.setattr(dots, "bytes_of", bytes_on_gpu)
    with torch.device("cuda"):
        dots.test_scaled_e2m1(k_pack)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_scaled_fp8(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dots, "bytes_of", bytes_on_gpu)
    with torch.device("cuda"):
        dots.test_scaled_fp8(name)


@pytest.mark.parametrize("test", [mapped.test_pairs, mapped.test_groups_of_four, dots.test_f64])
def test_others(test: Any) -> None:
    with torch.device("cuda"):
        test()
