"""What a launch says when it is given something else than it needs, and how kernels print."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.ws.kernels import matmul
from tiledsl.errors import LaunchError
from tiledsl.errors import TypeMismatch
from tiledsl.runtime.descriptor import TensorDescriptor


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
            "reads 'BLOC', which is no parameter(.*\n)+hint: did you mean 'BLOCK'",
        ),
        (lambda meta: (meta["size"],), "reads 'size'(.*\n)+hint: it may read x, n, BLOCK"),
        (lambda meta: (meta["BLOCK"] + "1",), "failed: unsupported operand"),
        (
            lambda: (1,),
            "cannot be called with the meta-parameters(.*\n)+hint: write it as `lambda meta",
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


NEGATED = torch.randn(8, dtype=torch.cfloat).conj().imag


@pytest.mark.parametrize("place", ["cpu", "device"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("grid", "x", "n", "text"),
    [
        ((2.0, 1), None, 1, r"fill\(\): grid must be one to three ints, got \(2.0, 1\)"),
        ((1, 65536), None, 1, r"fill\(\): grid \(1, 65536, 1\): axis 1 needs 65536 CTAs, at most"),
        (lambda _: (1, 1, 65536), None, 1, r"axis 2 needs 65536 CTAs, at most 65535"),
        ((2**31,), None, 1, r"axis 0 needs 2147483648 CTAs"),
        ((-1,), None, 1, r"fill\(\): grid extents must not be negative"),
        ((1,), "a", 1, r"fill\(\): argument x: expected a tensor or scalar, got str"),
        ((1,), torch.zeros(8).to_sparse(), 1, r"fill\(\): argument x: expected a strided tensor"),
        (
            (1,),
            NEGATED,
            1,
            r"fill\(\): argument x: a lazy negation.*(.*\n)+hint: pass x.resolve_neg",
        ),
        ((1,), None, 2**64, r"fill\(\): argument n: 18446744073709551616 does not fit"),
    ],
)
def test_errors_of_launches_name_the_kernel_and_its_place(
    monkeypatch, place, grid, x, n, text, warm
) -> None:
    fill.forget()
    x = torch.zeros(8) if x is None else x
    if place == "device":
        fake_driver.install(monkeypatch)
    if warm:
        fill[(1,)](torch.zeros(8), 1, 8)
    for ask in (fill.run, fill.bind, fill.report):
        with pytest.raises(LaunchError, match=text) as caught:
            ask(x, n, 8, grid=grid)
        assert caught.value.loc is not None
        assert "test_messages.py:" in str(caught.value)
        assert "\n    def fill(x, n, BLOCK: tl.constexpr):\n        ^^^^" in str(caught.value)


def test_a_negation_under_a_descriptor_and_on_a_warm_path(monkeypatch) -> None:
    fake = fake_driver.install(monkeypatch)
    fill.forget()
    plain = torch.zeros(16)[::2]
    for _ in range(3):
        fill[(1,)](plain, 1, 8)
    for _ in range(3):
        with pytest.raises(LaunchError, match="argument x: a lazy negation"):
            fill[(1,)](NEGATED, 1, 8)
    fill[(1,)](NEGATED.resolve_neg(), 1, 8)
    assert len(fake.launches) == 4
    strided = torch.zeros(16)[::2].view(1, 8)
    for tensor in (NEGATED.view(1, 8), strided, strided):
        if tensor.is_neg():
            with pytest.raises(LaunchError, match="argument a: a lazy negation"):
                described[(1,)](TensorDescriptor.from_tensor(tensor, [1, 8]))
        else:
            described[(1,)](TensorDescriptor.from_tensor(tensor, [1, 8]))
    with pytest.raises(LaunchError, match="argument a: a lazy negation"):
        described[(1,)](TensorDescriptor.from_tensor(NEGATED.view(1, 8), [1, 8]))
    assert len(fake.launches) == 6


@tiledsl.jit
def described(a):
    a.store((0, 0), a.load((0, 0)))


def test_a_number_for_a_pointer() -> None:
    @tiledsl.jit
    def moved(x, y, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y + at * n, tl.load(x + at))

    x = torch.zeros(8)
    with pytest.raises(TypeMismatch, match=r"store\(\): .*made of argument y(.*\n)+hint: give a "):
        moved[(1,)](x, 5, 8, 8)
    with pytest.raises(TypeMismatch, match=r"load\(\): expected a pointer.* made of argument x"):
        moved[(1,)](5, x, 8, 8)
