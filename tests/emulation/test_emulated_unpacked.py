"""Matmuls that unpack weights in their loops: the emitted text on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulation.harness import replaced
from tests.emulation.test_emulated_rings import execute
from tests.emulation.test_emulated_rings import run
from tests.ring_kernels import ring_kernel
from tests.unpacked_kernels import interleaved_args
from tests.unpacked_kernels import interleaved_want
from tests.unpacked_kernels import interleaved_words
from tests.unpacked_kernels import joined_args
from tests.unpacked_kernels import joined_halves
from tests.unpacked_kernels import joined_want
from tests.unpacked_kernels import shifted_args
from tests.unpacked_kernels import shifted_want
from tests.unpacked_kernels import shifted_words
from tiledsl.emulate.errors import EmulationFault


@pytest.mark.parametrize(
    ("M", "blocks", "split", "dtype"),
    [
        (64, (64, 64, 32), 1, torch.float16),
        (16, (16, 32, 128), 2, torch.float16),
        (40, (64, 64, 64), 1, torch.bfloat16),
    ],
)
def test_shifted_words(M: int, blocks: tuple[int, int, int], split: int, dtype: Any) -> None:
    args = shifted_args(M, 64, 512, blocks, split, dtype)
    notes = run(shifted_words, args, (64 // blocks[1], split), num_stages=3)
    rtol = 2e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(args[4].sum(0), shifted_want(args), rtol=rtol, atol=20 * rtol)
    assert any("b repeats 8 times, each is loaded once" in n for n in notes), notes
    assert any("zeros repeats 8 times" in n for n in notes), notes


def test_words_are_loaded_once_and_unpacked_in_vectors() -> None:
    made, _ = ring_kernel(shifted_words, shifted_args(64, 64, 512, (64, 64, 32)), num_stages=3)
    text = made.module.source
    assert "3 x 4x64 i32" in text or "2 x 4x64 i32" in text
    assert "write_shared<8, f16>" in text
    assert "sub_pair<f16>(mul_pair<f16>(" in text
    assert not any("converted from blocked" in n for n in made.notes), made.notes


@pytest.mark.parametrize("K", [128, 192])
def test_joined_halves(K: int) -> None:
    args = joined_args(60, 128, K, (64, 128, 64))
    notes = run(joined_halves, args, (1, 1), num_stages=3)
    torch.testing.assert_close(args[2][:60], joined_want(args), rtol=1e-3, atol=1e-2)
    assert not any("converted from blocked" in n for n in notes), notes


@pytest.mark.parametrize("out", [torch.float32, torch.float16])
def test_interleaved_words(out: Any) -> None:
    args = interleaved_args(16, 64, 256, (32, 32, 32), out)
    notes = run(interleaved_words, args, (1, 2), num_stages=3)
    rtol = 2e-3 if out == torch.float32 else 2e-2
    want = interleaved_want(args)
    torch.testing.assert_close(args[4].float(), want, rtol=rtol, atol=20 * rtol)
    assert not any("converted from blocked" in n for n in notes), notes


@pytest.mark.parametrize(
    ("M", "blocks", "num_warps", "by_warps"),
    [
        (16, (16, 32, 128), 4, True),
        (30, (32, 64, 32), 8, True),
        (16, (16, 128, 64), 4, True),
        (16, (16, 32, 128), 8, False),
        (64, (64, 64, 32), 4, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_few_rows_are_multiplied_by_warps(
    M: int, blocks: tuple[int, int, int], num_warps: int, by_warps: bool, dtype: Any
) -> None:
    """Where each warp has a block of columns; nothing is written to shared memory then."""
    args = shifted_args(M, 128, 256, blocks, 1, dtype)
    made, runtime = ring_kernel(shifted_words, args, num_warps=num_warps, num_stages=4)
    text = made.module.source
    assert ("warp_mma<" in text) == by_warps
    assert ("fence_async_smem" in text) != by_warps
    assert any("copies 3 iterations ahead" in n for n in made.notes), made.notes
    execute(made.module, runtime, (128 // blocks[1], 1), num_warps)
    rtol = 2e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(args[4].sum(0), shifted_want(args), rtol=rtol, atol=20 * rtol)


@pytest.mark.parametrize("fault", ["no wait", "no barrier", "a slot too early"])
def test_faults_of_slots_that_warps_read_are_found(fault: str) -> None:
    old, new, message = {
        "no wait": ("cp_async_wait<1>();", "", "while a copy into it is in flight"),
        "no barrier": ("(?m)(cp_async_wait<1>..;)\\s+block_sync..;", "\\g<1>", "."),
        "a slot too early": ("(?m)slot_1 < 1\\) . \\(slot_1 . 2", "\\g<0> - 1", "."),
    }[fault]
    args = shifted_args(16, 32, 1024, (16, 32, 128))
    made, runtime = ring_kernel(shifted_words, args, num_stages=3)
    module = replaced(made.module, old, new)

    def all_seeds() -> None:
        for seed in range(4):
            execute(module, runtime, (1, 1), seed)
            torch.testing.assert_close(args[4].sum(0), shifted_want(args), rtol=2e-3, atol=4e-2)

    with pytest.raises((EmulationFault, AssertionError), match=message):
        all_seeds()
