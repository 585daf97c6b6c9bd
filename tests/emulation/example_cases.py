"""The examples at sizes for the emulation: one launch or a few of each kernel, odd extents.

Shared by the comparisons of the emulation with the interpreter (here) and with the device
(tests/gpu/test_calibration.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from examples import attention
from examples import attention_backward
from examples import attention_varlen_backward
from examples import back_to_back
from examples import batched_matmul
from examples import block_scaled_matmul
from examples import causal_attention
from examples import cross_entropy
from examples import dropout
from examples import epilogue
from examples import fp8_attention
from examples import fp8_matmul
from examples import fused_epilogues
from examples import gated_mlp
from examples import grouped_list
from examples import grouped_matmul
from examples import histogram
from examples import linear_attention
from examples import matmul
from examples import norm_matmul
from examples import norms
from examples import reductions
from examples import rope
from examples import softmax
from examples import swiglu
from examples import top_k
from examples import transpose
from examples import vector_add
from examples import weight_only
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul as plain

BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """Launches of an example.

    run: launches on a device. exact: where the bits do not depend on the order of sums: "always", with
    "integers" for inputs, with integers and zeros for the arguments named after "zero:", or "" where
    functions are approximate. only: arguments of which that holds, if not of all. tolerance: on random
    inputs, of the largest value.
    """

    name: str
    run: Callable[[str], Any]
    exact: str
    tolerance: float = 2.0**-7
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def structure(out: torch.dtype, **options: Any) -> Callable[[str], None]:
    """The README's matmul with launch options."""

    def run(device: str) -> None:
        M, N, K = 200, 264, 136
        a = torch.randn(M, K, device=device, dtype=BF16)
        b = torch.randn(K, N, device=device, dtype=BF16)
        c = torch.full((M, N), float("nan"), device=device, dtype=out)
        plain[grid_of(M, N)](a, b, c, **options)

    return run


def rows(n: int, width: int, device: str, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(n, width, device=device, dtype=dtype)


MATMULS = [
    Case("vector_add", lambda d: vector_add.add(*(torch.rand(5003, device=d) for _ in "xy")), "always"),
    Case("matmul", lambda d: matmul.run(200, 264, 136, d), "integers"),
    Case("ping-pong, cluster", structure(BF16, BM=64, BN=128, ping_pong=True, cluster=2), "integers"),
    Case("ping-pong", structure(F32, BM=128, BN=128, ping_pong=True, cluster=1), "integers"),
    Case("cooperative", structure(
        BF16, BM=128, BN=256, num_consumers=2, ping_pong=False, cluster=1), "integers"),
    Case("split", structure(BF16, BM=128, BN=128, split_k=2), "integers"),
    Case("swapped", structure(BF16, BM=16, BN=64, swap_operands=True), "integers"),
    Case("one tile", structure(BF16, BM=128, BN=128, persistent=False), "integers"),
    Case("single role", structure(F32, BM=64, BN=64, warp_specialize=False), "integers"),
    Case("relu", lambda d: epilogue.run(96, 200, 64, d, epilogue.relu), "integers"),
    Case("gelu", lambda d: epilogue.run(96, 200, 80, d, epilogue.gelu), ""),
    Case("gated_mlp", lambda d: gated_mlp.run(96, 200, 80, d), ""),
    Case("back_to_back", lambda d: back_to_back.run(
        (2, 70, 200, 64, 64), d, back_to_back.relu), "integers"),
    Case("batched", lambda d: batched_matmul.run(3, 96, 136, 80, d), "integers"),
    Case("grouped", lambda d: grouped_matmul.run([130, 0, 1, 70], 136, 72, d), "integers"),
    Case("list of products", lambda d: grouped_list.run(
        [(130, 136, 72), (1, 64, 200), (64, 8, 8)], d), "integers"),
    *(Case(f"{k} norm, then a product", lambda d, k=k: norm_matmul.run(96, 200, 80, d, k), "")
      for k in ("rms", "layer")),
    Case("fp8", lambda d: fp8_matmul.run(96, 200, 320, d), "integers"),
    Case("fp8, fast sums", lambda d: fp8_matmul.run(
        96, 200, 320, d, limit=fp8_matmul.FAST), "integers"),
    Case("block scales", lambda d: block_scaled_matmul.run(96, 200, 320, d), "integers"),
    *(Case(k, lambda d, k=k: fused_epilogues.run(k, 96, 200, 80, d),
           "" if k in ("quantised", "dropout") else "integers", 2.0**-3 if k == "quantised" else 2.0**-7)
      for k in fused_epilogues.KINDS),
    *(Case(f"{k} weights", lambda d, k=k: weight_only.run(k, 20, 136, 192, d), "integers")
      for k in weight_only.KINDS),
]  # fmt: skip
ATTENTION = [
    Case("full", lambda d: attention.run(
        (1, 2, 1, 70, 128, 64), d, causal=False), "zero:q", only=("o",)),
    Case("causal", lambda d: attention.run((1, 2, 1, 150, 150, 64), d, causal=True), ""),
    Case("plain causal", lambda d: causal_attention.causal_attention(
        *(torch.randn(1, 1, 200, 64, device=d, dtype=BF16) for _ in "qkv")), ""),
    Case("gradients", lambda d: attention_backward.run((1, 2, 1, 70, 100, 64), d, causal=True), "", 2.0**-6),
    Case("packed gradients", lambda d: attention_varlen_backward.run(
        [70, 3, 0, 40], (2, 1), 64, d, causal=True), "", 2.0**-6),
    Case("fp8 attention", lambda d: fp8_attention.run((1, 2, 200, 64), d, causal=True), "", 2.0**-5),
    Case("linear attention", lambda d: linear_attention.run((1, 2, 150, 64, 64), d), "zero:rates"),
]  # fmt: skip
ROWS = [
    Case("softmax", lambda d: softmax.softmax(rows(5, 781, d)), "", 2.0**-18),
    Case("cross_entropy", lambda d: cross_entropy.run(4, 1000, d, F32), "", 2.0**-16),
    Case("rms_norm", lambda d: norms.run(5, 300, d, F32, centred=False), "", 2.0**-16),
    Case("layer_norm", lambda d: norms.run(5, 300, d, BF16, centred=True), "", 2.0**-6),
    Case("rope", lambda d: rope.run((2, 5, 4, 32), d, F32), "integers", 2.0**-20),
    Case("swiglu", lambda d: swiglu.run((5, 781), d, F32), "", 2.0**-18),
    Case("dropout of rows", lambda d: dropout.run((4001,), d, F32), "always"),
    Case("sums", lambda d: reductions.run(50, 130, 4, d, F32), "integers", 2.0**-18),
    Case("transpose", lambda d: transpose.transpose(rows(70, 130, d)), "always"),
    Case("histogram", lambda d: histogram.histogram(
        torch.randint(-3, 260, (5001,), device=d, dtype=torch.int32), 256), "always"),
    Case("top_k", lambda d: top_k.run(3, 781, 8, d, BF16), "always"),
]  # fmt: skip
CASES = [*MATMULS, *ATTENTION, *ROWS]
