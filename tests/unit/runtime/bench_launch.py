"""Python cost of a launch with the driver call faked: `python tests/unit/runtime/bench_launch.py`."""

from __future__ import annotations

import sys
import timeit
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import tiledsl  # noqa: E402
import tiledsl.language as tl  # noqa: E402
from tests.unit.runtime import fake_driver  # noqa: E402

MANY = ", ".join(f"x{i}" for i in range(9))
TEXT = f"""
@tiledsl.jit
def many({MANY}, o, n0, n1, n2, n3, n4, n5, n6, n7, a, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    s = {" + ".join(f"tl.load(x{i} + i, mask=i < n0)" for i in range(9))}
    tl.store(o + i, s * a + n1 + n2 + n3 + n4 + n5 + n6 + n7, mask=i < n0)
"""


# fmt: off
@tiledsl.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


class Patch:
    """As much of pytest's monkeypatch as the fake driver needs."""

    def setattr(self, owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)


def cost(function, number: int = 500) -> float:
    function()
    return min(timeit.repeat(function, number=number, repeat=60)) / number * 1e6


def many_kernel():
    import linecache

    linecache.cache["<many>"] = (len(TEXT), None, TEXT.splitlines(keepends=True), "<many>")
    names = {"tiledsl": tiledsl, "tl": tl, "__name__": "many"}
    exec(compile(TEXT, "<many>", "exec"), names)
    return names["many"]


def main() -> None:
    fake = fake_driver.install(Patch())
    fake_driver.driver.launch_call = lambda: lambda *_: 0
    del fake
    n = 4096
    x, y, o = (torch.zeros(n) for _ in range(3))
    grid = (tl.cdiv(n, 1024),)
    by_meta = lambda meta: (tl.cdiv(n, meta["BLOCK"]),)  # noqa: E731
    print(f"add, tuple grid      {cost(lambda: add[grid](x, y, o, n, BLOCK=1024)):6.2f} us")
    print(f"add, function grid   {cost(lambda: add[by_meta](x, y, o, n, BLOCK=1024)):6.2f} us")
    warps = lambda: add[grid](x, y, o, n, BLOCK=1024, num_warps=8)  # noqa: E731
    print(f"add, num_warps=8     {cost(warps):6.2f} us")
    print(f"add, bound           {cost(add.bind(x, y, o, n, BLOCK=1024, grid=grid)):6.2f} us")
    many, xs = many_kernel(), [torch.zeros(n) for _ in range(9)]
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = xs
    call = lambda: many[grid](  # noqa: E731
        x0, x1, x2, x3, x4, x5, x6, x7, x8, o, n, 2, 3, 4, 5, 6, 7, 8, 1.5, 1024
    )
    print(f"20 arguments         {cost(call):6.2f} us")
    a, b, c = (torch.zeros(n, n, dtype=torch.bfloat16) for _ in range(3))
    tiles = lambda meta: (tl.cdiv(n, meta["BM"]), tl.cdiv(n, meta["BN"]))  # noqa: E731
    print(f"matmul, tensor maps  {cost(lambda: matmul[tiles](a, b, c)):6.2f} us")
    print(f"matmul, bound        {cost(matmul.bind(a, b, c, grid=tiles)):6.2f} us")


if __name__ == "__main__":
    main()
