"""Runs example kernels one after the other, under compute-sanitizer: for scripts/sanitize.sh.

    python -m tests.gpu.sanitized NAME ...

Prints a line before and after each case, so that what the sanitizer says in between can be told apart.
"""

from __future__ import annotations

import sys
import time

import torch

from examples import attention
from examples import matmul
from examples import softmax
from tests.emulation.example_cases import CASES
from tests.emulation.example_cases import Case

# Several tiles for each CTA, so that rings come round; rows that take a cluster.
LARGE = [
    Case("large matmul", lambda d: matmul.run(4096, 4096, 512, d), ""),
    Case("large attention", lambda d: attention.run((2, 16, 4, 1000, 1000, 128), d, causal=True), ""),
    Case("long rows", lambda d: softmax.softmax(torch.randn(4, 65536, device=d)), ""),
]  # fmt: skip
BY_NAME = {case.name: case for case in [*CASES, *LARGE]}


def main(names: list[str]) -> None:
    """Runs the cases; a case that raises does not end the others."""
    for name in names:
        torch.manual_seed(0)
        print(f"@start {name}", flush=True)
        outcome = "done"
        try:
            BY_NAME[name].run("cuda")
            torch.cuda.synchronize()
        except Exception as error:
            outcome = f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        time.sleep(0.1)  # what the sanitizer has to say comes by another way
        print(f"@end {name} {outcome}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(BY_NAME))
