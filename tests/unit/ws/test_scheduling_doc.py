"""docs/scheduling.md shows what the compiler prints."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from examples.attention import attention_kernel
from examples.attention import tiles
from tests.unit.ws.kernels import first

PAGE = Path(__file__).parents[3] / "docs" / "scheduling.md"


def test_the_attention_loop() -> None:
    shown = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    q, lse = (torch.empty(4, 16, 4096, *d, device="meta", dtype=t) for d, t in
              (((128,), torch.bfloat16), ((), torch.float32)))  # fmt: skip
    args = (q, q, q, torch.empty_like(q), lse, q, 0, 128**-0.5, False, 0, None, 1)
    options = {**tiles(4096, 128, 128), "fast_math": True}
    notes = first(attention_kernel.request_for(args, options, (32, 16, 4))[1]).notes
    for line in shown.splitlines()[1:]:
        assert line in notes, f"no longer printed: {line}"
