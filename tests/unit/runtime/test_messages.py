"""What a launch says when it is given something else than it needs, and how kernels print."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import matmul
from tiledsl.errors import LaunchError
from tiledsl.errors import TypeMismatch


@tiledsl.jit
def fill(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32) + n)


@tiledsl.jit
def typed(x, n: tl.int32, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.zeros([BLOCK], tl.float32) + n)


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        (
            lambda meta: (meta["BLOC"],),
            "reads 'BLOC', which is no parameter\nhint: did you mean 'BLOCK'",
        ),
        (lambda meta: (meta["size"],), "reads 'size'.*\nhint: it may read x, n, BLOCK"),
        (lambda meta: (meta["BLOCK"] + "1",), "failed: unsupported operand"),
        (
            lambda: (1,),
            "cannot be called with the meta-parameters.*\nhint: write it as `lambda meta",
        ),
        ("ab", "grid must be one to three ints"),
    ],
)
def test_grids(grid, text: str) -> None:
    with pytest.raises(LaunchError, match=text):
        fill[grid](torch.zeros(8), 1, 8)


def test_a_tensor_for_a_number() -> None:
    with pytest.raises(TypeMismatch, match=r"'n' is a tensor, and so a pointer: pass n\.item"):
        fill[(1,)](torch.zeros(8), torch.tensor(3), 8)
    with pytest.raises(
        TypeMismatch, match=r"'n' is declared tl\.int32, got a tensor\nhint: pass n\.item"
    ):
        typed[(1,)](torch.zeros(8), torch.tensor(3), 8)


def test_numpy_arrays_are_taken_as_they_are() -> None:
    x = torch.zeros(8).numpy()
    fill[(1,)](x, 2, 8)
    assert x.tolist() == [2.0] * 8


def test_kernels_print_their_parameters_and_place() -> None:
    assert repr(fill).startswith("<kernel fill(x, n, BLOCK) at ")
    assert "test_messages.py:" in repr(fill)


def test_options_without_effect_are_reported() -> None:
    report = fill.report(torch.zeros(8), 1, 8, num_stages=3, num_ctas=2, persistent=False)
    assert "num_stages=3 is ignored: the kernel has a single role, which has no ring" in report
    assert "num_ctas=2 is ignored: an option of other compilers" in report
    assert "persistent" not in report


def test_hints_that_are_not_followed_are_reported() -> None:
    x = torch.empty(512, 512, device="meta", dtype=torch.bfloat16)
    grid = lambda t: (-(-512 // t["BM"]), -(-512 // t["BN"]))  # noqa: E731
    note = r"num_warps=16 is not followed: the kernel has 12 warps, those of its roles"
    assert note in matmul.report(x, x, x, grid=grid, BM=128, BN=128, num_warps=16)
    assert "num_warps" not in matmul.report(x, x, x, grid=grid, BM=128, BN=128, num_warps=12)
    alone = {"BM": 64, "BN": 64, "warp_specialize": False}
    assert "num_warps=3 is not followed: the kernel has 4 warps" in matmul.report(
        x, x, x, grid=grid, num_warps=3, **alone
    )
    assert "num_warps" not in fill.report(torch.zeros(8), 1, 8, num_warps=3)
    deep = matmul.report(x, x, x, grid=grid, BM=128, BN=256, num_stages=90)
    assert "num_stages=90: 4 slots fit and are used" in deep


def test_threads_of_a_single_role_are_counted_in_warps() -> None:
    assert "threads: 64 (2 warps)" in fill.report(torch.zeros(8), 1, 8, num_warps=2)


def test_edited_text_is_inspected_like_the_kernel(tmp_path) -> None:
    x = torch.zeros(8)
    path = tmp_path / "fill.cu"
    path.write_text("// edited\n" + fill.cuda(x, 1, 8))
    edited = fill.with_cuda(path)
    assert edited.cuda(x, 1, 8).startswith("// edited")
    assert ".entry fill" in edited.ptx(x, 1, 8)
    assert edited.compile(x, 1, 8).compiled.spill_bytes == 0
    assert f"the text is that of {path}" in edited.report(x, 1, 8)
    assert str(path) in repr(edited)
