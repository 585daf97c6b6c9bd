"""Blocks that go through register layouts and shared memory, and how to check them on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.unit.codegen.machine_graphs import Kernel
from tiledsl import dtypes as dt
from tiledsl.dtypes import DType
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import smem
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType

if TYPE_CHECKING:
    import torch

Run = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """A copy of a block: read in one layout, optionally through shared memory into another, and stored.

    window: (start, extents) of the part of the tile that goes through shared memory.
    inner: the tensors' contiguous dimension.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    first: Layout
    second: Layout | None = None
    major: int = 1
    swizzle: int = 128
    inner: int | None = 1
    offsets: tuple[int, ...] = (0, 0)
    tensor_shape: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    extents: tuple[int, ...] = ()
    transposed: bool = False

    def graph(self) -> TileGraph:
        """out[:] = the block of x, or its window."""
        warps = self.first.num_warps
        window = self.extents or self.shape
        smem_shape = window[::-1] if self.transposed else window
        type_ = SmemType(window, self.dtype, self.major, self.swizzle)
        k = Kernel("layouts", num_threads=32 * warps, smem_bytes=type_.bytes if self.second else 0)
        t = TensorType(len(self.shape), self.dtype, self.inner, False, 16)
        x = k.arg("x", t)
        out = k.arg("out", TensorType(len(self.shape), self.dtype, len(self.shape) - 1, False, 16))
        zero = k.c(0)
        offsets = tuple(k.c(o) for o in self.offsets)
        v = k.tile(memory.Load(x, offsets, block_shape=self.shape), self.first, "block")
        if self.second is not None:
            buffer = k.b.value(smem.Buffer(type_, 1, offset_bytes=0), "buffer")
            k.op(smem.Write(buffer, v, start=self.start))
            k.op(barrier.CtaSync())
            source = k.b.value(smem.View(buffer, (1, 0))) if self.transposed else buffer
            v = k.tile(smem.Read(source), self.second, "again")
        k.op(memory.Store(out, (zero,) * len(self.shape), v, block_shape=smem_shape))
        return k.graph

    def check(self, run: Run) -> None:
        """Runs and compares bits."""
        import torch

        full = self.tensor_shape or self.shape
        kinds = {"bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn, "i32": torch.int32,
                 "i1": torch.bool, "f64": torch.float64, "u8": torch.uint8}  # fmt: skip
        kind = kinds[self.dtype.name]
        x = torch.randn(full, device="cuda").mul(8).to(kind)
        if self.inner is not None and self.inner != len(full) - 1:
            order = [d for d in range(len(full)) if d != self.inner] + [self.inner]
            x = x.permute(order).contiguous().permute([order.index(d) for d in range(len(full))])
        window = self.extents or self.shape
        out = torch.zeros(window[::-1] if self.transposed else window, device="cuda").to(kind)
        run(self.graph(), {"x": x, "out": out})
        want = self.expected(x)
        assert torch.equal(out.view(torch.uint8), want.contiguous().view(torch.uint8))

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        block = torch.zeros(self.shape, device=x.device).to(x.dtype)
        into = tuple(
            slice(max(0, -o), max(0, min(n, e - o)))
            for o, n, e in zip(self.offsets, self.shape, x.shape, strict=True)
        )
        from_ = tuple(
            slice(max(0, o), max(0, min(e, o + n)))
            for o, n, e in zip(self.offsets, self.shape, x.shape, strict=True)
        )
        block[into] = x[from_]
        start = self.start or (0,) * len(self.shape)
        window = self.extents or self.shape
        block = block[tuple(slice(s, s + n) for s, n in zip(start, window, strict=True))]
        return block.T if self.transposed else block


def _cases() -> Iterator[Case]:
    bf16, f32 = dt.bfloat16, dt.float32
    rows = blocked((64, 64), 4, vector=8)
    acc = mma_accumulator(64, 64)
    wide = mma_accumulator(128, 192)
    yield Case("rows", (64, 64), bf16, rows)
    yield Case("ragged", (64, 64), bf16, rows, offsets=(3, 8), tensor_shape=(50, 40))
    yield Case("unaligned", (64, 64), bf16, rows, offsets=(-3, 5), tensor_shape=(61, 63))
    yield Case("negative", (64, 64), bf16, rows, offsets=(-8, -16), tensor_shape=(64, 64))
    yield Case(
        "column-major", (64, 64), bf16, blocked((64, 64), 4, vector=8, order=(0, 1)), inner=0
    )
    yield Case("no-inner", (64, 64), bf16, rows, inner=None)
    yield Case("padded", (48, 40), bf16, blocked((48, 40), 4, vector=8))
    yield Case("odd", (7, 5), f32, blocked((7, 5), 4, vector=4))
    yield Case("replicated", (4, 4), f32, blocked((4, 4), 8))
    yield Case("doubles", (16, 32), dt.float64, blocked((16, 32), 2, vector=2))
    yield Case("bools", (16, 64), dt.int1, blocked((16, 64), 2, vector=16))
    yield Case("bytes", (16, 128), dt.uint8, blocked((16, 128), 2, vector=16))
    yield Case(
        "rank3",
        (4, 6, 32),
        f32,
        blocked((4, 6, 32), 4, vector=4),
        inner=2,
        offsets=(1, 2, 4),
        tensor_shape=(4, 7, 33),
    )
    yield Case(
        "rank1",
        (300,),
        f32,
        blocked((300,), 4, vector=4),
        inner=0,
        offsets=(4,),
        tensor_shape=(290,),
    )
    for swizzle in (0, 128):
        for major in (0, 1):
            tag = f"s{swizzle}m{major}"
            yield Case(f"rows-acc-{tag}", (64, 64), bf16, rows, acc, major, swizzle)
            yield Case(f"acc-rows-{tag}", (64, 64), bf16, acc, rows, major, swizzle)
            yield Case(
                f"accT-rows-{tag}", (64, 64), bf16, acc.transpose((1, 0)), rows, major, swizzle
            )
            yield Case(
                f"f32-{tag}", (64, 64), f32, acc, blocked((64, 64), 4, vector=4), major, swizzle
            )
            yield Case(
                f"fp8-{tag}",
                (128, 128),
                dt.float8e4nv,
                blocked((128, 128), 4, vector=16),
                mma_accumulator(128, 128),
                major,
                swizzle,
            )
    big = blocked((128, 192), 4, vector=8)
    yield Case("acc-wide", (128, 192), bf16, wide, big)
    yield Case("acc-wide-major0", (128, 192), bf16, wide, big, 0)
    yield Case(
        "acc-chunk",
        (128, 192),
        bf16,
        wide,
        blocked((128, 64), 4, vector=8),
        start=(0, 128),
        extents=(128, 64),
    )
    yield Case(
        "acc-chunk-ragged",
        (64, 176),
        bf16,
        mma_accumulator(64, 176),
        blocked((64, 64), 4, vector=8),
        start=(0, 112),
        extents=(64, 64),
    )
    yield Case(
        "acc-chunk-major0",
        (128, 192),
        bf16,
        wide,
        blocked((128, 64), 4, vector=8),
        0,
        start=(0, 64),
        extents=(128, 64),
    )
    yield Case(
        "acc-2-groups",
        (128, 128),
        bf16,
        mma_accumulator(128, 128, 2),
        blocked((128, 128), 8, vector=8),
    )
    yield Case(
        "acc-2-groups-major0",
        (128, 128),
        bf16,
        mma_accumulator(128, 128, 2),
        blocked((128, 128), 8, vector=8),
        0,
    )
    yield Case(
        "acc-2-groups-cols",
        (64, 256),
        bf16,
        mma_accumulator(64, 256, 2, split=1),
        blocked((64, 256), 8, vector=8),
    )
    yield Case(
        "acc-256-rows",
        (256, 64),
        bf16,
        mma_accumulator(256, 64, 2),
        blocked((256, 64), 8, vector=8),
    )
    yield Case(
        "acc-256-rows-major0",
        (256, 64),
        bf16,
        mma_accumulator(256, 64, 2),
        blocked((256, 64), 8, vector=8),
        0,
    )
    yield Case(
        "view",
        (64, 128),
        bf16,
        blocked((64, 128), 4, vector=8),
        blocked((128, 64), 4, vector=8),
        transposed=True,
    )
    yield Case(
        "row-window",
        (128, 64),
        bf16,
        blocked((128, 64), 4, vector=8),
        blocked((32, 64), 4, vector=8),
        start=(64, 0),
        extents=(32, 64),
    )


CASES = list(_cases())
