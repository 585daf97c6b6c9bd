"""Times the matmul family: fp8, block scales, groups, batches, few rows, work on the result.

    python3 tests/bench/bench_gemm_family.py [--groups fp8 ...] [--rows NAME ...] [--sweep]

Method as in bench_matmul: random inputs in rotating sets, each contender a CUDA graph of n launches, blocks of
all contenders in turn, medians; each is checked against fp64 with poisoned outputs before it is timed. What
nobody here writes by hand is compared with torch: `_scaled_mm`, `_grouped_mm`, `bmm`, `matmul`. Kernels are
compiled by several processes before the first row. A baseline that torch does not have is left out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import tiledsl  # noqa: E402
import tiledsl.language as tl  # noqa: E402
from examples import attention  # noqa: E402
from examples import batched_matmul  # noqa: E402
from examples import block_scaled_matmul  # noqa: E402
from examples import epilogue  # noqa: E402
from examples import fp8_attention  # noqa: E402
from examples import fp8_matmul  # noqa: E402
from examples import fused_epilogues  # noqa: E402
from examples import grouped_list  # noqa: E402
from examples import grouped_matmul  # noqa: E402
from examples import norm_matmul  # noqa: E402
from examples import weight_only  # noqa: E402
from examples.matmul import matmul  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.bench_matmul import describe  # noqa: E402
from tests.bench.harness import capture  # noqa: E402
from tests.bench.harness import replay  # noqa: E402
from tests.bench.harness import serve  # noqa: E402
from tests.bench.harness import timed  # noqa: E402

E4M3, BF16, F32, I32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.int32
SET_BYTES = 200_000_000
OURS = "ours"
Tensors = dict[str, torch.Tensor]


@dataclass
class Ours:
    """A launch of one of our kernels. args: of a set of tensors. out: the name of its result."""

    kernel: Any
    args: Callable[[Tensors], tuple[Any, ...]]
    grid: Any
    options: dict[str, Any] = field(default_factory=dict)
    out: str = "c"
    before: Callable[[Tensors], None] | None = None


@dataclass
class Case:
    """One line of the table.

    tensors: makes a set on a device. want: the fp64 result of a set. flops, moved: of a launch.
    bars: (contender, baseline, ratio to reach); the first is what the table shows.
    """

    tensors: Callable[[str], Tensors]
    ours: dict[str, Ours]
    theirs: dict[str, Callable[[Tensors], torch.Tensor | None]]
    want: Callable[[Tensors], torch.Tensor]
    flops: float
    bars: list[tuple[str, str, float]]
    limit: float = 4e-3
    moved: float = 0.0
    sweep: dict[str, dict[str, Any]] = field(default_factory=dict)


def normal(device: str, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    if device == "meta":
        return torch.empty(shape, device=device, dtype=dtype)
    return torch.randn(shape, device=device, dtype=BF16 if dtype.itemsize < 2 else dtype).to(dtype)


def empty(device: str, *shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, device=device, dtype=dtype)


def tiles(m: int, n: int) -> Callable[[dict[str, Any]], tuple[int, int]]:
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))


# ---------------------------------------------------------------------- fp8
PROMOTED = {
    f"{bm}x{bn} c{c}": {"BM": bm, "BN": bn, "cluster": c}
    for bm, bn in ((128, 192), (128, 176), (128, 160), (128, 144), (128, 128), (192, 128), (192, 112), (256, 96))
    for c in (1, 2)
}  # fmt: skip
PROMOTED |= {
    f"{name} free": {**PROMOTED[name], "ping_pong": False}
    for name in ("128x192 c2", "128x144 c2", "192x112 c1")
}


# fmt: off
@tiledsl.jit
def fp8_product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, LIMIT: tl.constexpr = None,
                BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """The product of fp8 matrices without a scale."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x, y = a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN))
        acc = tl.dot(x, y, acc, max_num_imprecise_acc=LIMIT)
    c.store((m, n), acc)
# fmt: on


def scaled_mm(t: Tensors, *, fast: bool) -> torch.Tensor:
    return torch._scaled_mm(t["a"], t["b"], t["one"], t["one"], out_dtype=BF16, use_fast_accum=fast)


def fp8(m: int, n: int, k: int, *, fast: bool, bar: float) -> Case:
    def make(device: str) -> Tensors:
        return {
            "a": normal(device, m, k, dtype=E4M3),
            "b": normal(device, n, k, dtype=E4M3).t(),
            "c": empty(device, m, n),
            "one": torch.ones((), device=device),
        }

    limit = fp8_matmul.FAST if fast else None
    base = "cuBLAS fast" if fast else "cuBLAS"
    return Case(
        make,
        {OURS: Ours(fp8_product, lambda t: (t["a"], t["b"], t["c"], limit), tiles(m, n))},
        {base: lambda t: scaled_mm(t, fast=fast)},
        lambda t: t["a"].double() @ t["b"].double(),
        2.0 * m * n * k,
        [(OURS, base, bar)],
        1e-2 if fast else 2.5e-3,
        m * k + n * k + 2 * m * n,
        {} if fast or m < 128 else PROMOTED,
    )  # fmt: skip


def block_scaled(m: int, n: int, k: int) -> Case:
    def make(device: str) -> Tensors:
        if device == "meta":
            names = ("a", "b", "sa", "sb", "c")
            return dict(zip(names, block_scaled_matmul.meta_arguments(m, n, k), strict=True))
        a, sa = block_scaled_matmul.quantised(torch.randn(m, k, device=device), 1)
        b, sb = block_scaled_matmul.quantised(torch.randn(n, k, device=device), 128)
        return {"a": a, "b": b.t(), "sa": sa, "sb": sb, "c": empty(device, m, n)}

    def want(t: Tensors) -> torch.Tensor:
        a = t["a"].double() * block_scaled_matmul.spread(t["sa"], 1, (m, k))
        return a @ (t["b"].t().double() * block_scaled_matmul.spread(t["sb"], 128, (n, k))).t()

    scaled = block_scaled_matmul.block_scaled_matmul
    names = ("a", "b", "sa", "sb", "c")
    return Case(
        make,
        {
            OURS: Ours(scaled, lambda t: tuple(t[x] for x in names), tiles(m, n)),
            "f32 sums": Ours(fp8_product, lambda t: (t["a"], t["b"], t["c"]), tiles(m, n), out=""),
        },
        {},
        want,
        2.0 * m * n * k,
        [(OURS, "f32 sums", 0.9)],
        2.5e-3,
        m * k + n * k + 2 * m * n,
        {
            f"{bm} c{c}{'' if turns else ' free'}": {"BM": bm, "cluster": c, "ping_pong": None if turns else False}
            for bm in (128, 192)
            for c in (1, 2)
            for turns in (True, False)
            if m >= 128
        },
    )  # fmt: skip


# ---------------------------------------------------------------------- groups and batches
def sizes_of(groups: int, rows: int) -> list[int]:
    """Uneven sizes that add up to `rows`: weights 1 to 4, one group empty."""
    weights = [0 if g == 1 else 1 + 3 * ((g * 7919) % groups) / groups for g in range(groups)]
    ends = [round(rows * sum(weights[: g + 1]) / sum(weights)) for g in range(groups)]
    return [b - a for a, b in zip([0, *ends], ends, strict=False)]


def grouped(groups: int, rows: int, n: int, k: int) -> Case:
    sizes = sizes_of(groups, rows)
    ends = [0]
    for s in sizes:
        ends.append(ends[-1] + s)

    def make(device: str) -> Tensors:
        weights = normal(device, groups, n, k)
        tensor = torch.tensor(ends, dtype=I32)
        return {
            "a": normal(device, rows, k),
            "w": weights.transpose(1, 2),
            "b": weights[0].t(),
            "offsets": tensor.to(device) if device != "meta" else empty(device, groups + 1, dtype=I32),
            "starts": empty(device, groups + 1, dtype=I32),
            "c": empty(device, rows, n),
        }  # fmt: skip

    steps = (groups - 1).bit_length()

    def before(t: Tensors) -> None:
        grouped_matmul.first_tiles[(1,)](t["offsets"], t["starts"], 1 << groups.bit_length())

    def want(t: Tensors) -> torch.Tensor:
        parts = [
            t["a"][x:y].double() @ w.double()
            for x, y, w in zip(ends, ends[1:], t["w"], strict=False)
        ]
        return torch.cat(parts)

    def grouped_mm(t: Tensors) -> torch.Tensor:
        return torch._grouped_mm(t["a"], t["w"], offs=t["offsets"][1:])

    def lists(t: Tensors) -> tuple[Any, ...]:
        cut = list(itertools.pairwise(ends))
        a, c = ([t[x][i:j] for i, j in cut] for x in "ac")
        return a, [t["w"][g] for g in range(groups)], c

    most = rows // grouped_matmul.ROWS + groups
    return Case(
        make,
        {
            OURS: Ours(
                grouped_matmul.grouped_matmul,
                lambda t: (t["a"], t["w"], t["offsets"], t["starts"], t["c"], groups, steps),
                lambda meta: (most, tl.cdiv(n, meta["BN"])),
                before=before,
            ),
            "a list": Ours(
                grouped_list.grouped_list, lists, grouped_list.grid_of([(s, n, k) for s in sizes])
            ),
            "one product": Ours(matmul, lambda t: (t["a"], t["b"], t["c"]), tiles(rows, n), out=""),
        },
        {"_grouped_mm": grouped_mm},
        want,
        2.0 * rows * n * k,
        [(OURS, "one product", 0.95), (OURS, "_grouped_mm", 1.0), ("a list", "one product", 0.95)],
        sweep={f"BN {bn} c{c}": {"BN": bn, "cluster": c} for bn in (128, 192, 256) for c in (1, 2)},
    )


BATCHED = {
    f"{bm}x{bn} c{c}": {"BM": bm, "BN": bn, "cluster": c}
    for bm, bn in ((128, 256), (256, 128), (128, 192), (192, 128), (128, 128), (256, 112))
    for c in (1, 2)
}


def batched(z: int, m: int, n: int, k: int, *, shared: bool = False) -> Case:
    def make(device: str) -> Tensors:
        b = normal(device, 1 if shared else z, n, k).transpose(1, 2)
        return {"a": normal(device, z, m, k), "b": b, "c": empty(device, z, m, n)}

    return Case(
        make,
        {
            OURS: Ours(
                batched_matmul.batched_matmul,
                lambda t: (t["a"], t["b"], t["c"]),
                lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]), z),
            )
        },
        {"bmm": lambda t: torch.bmm(t["a"], t["b"].expand(z, k, n))},
        lambda t: t["a"].double() @ t["b"].double(),
        2.0 * z * m * n * k,
        [(OURS, "bmm", 1.05)],
        sweep=BATCHED,
    )


# ---------------------------------------------------------------------- few rows
def few_rows(itemsize: int) -> dict[str, dict[str, Any]]:
    """Other tiles and splits of K; a row of a tile of weights has 256 to 1024 bytes."""
    plans = (
        (64, 512, 1),
        (64, 1024, 1),
        (64, 256, 1),
        (128, 512, 2),
        (128, 256, 2),
        (64, 512, 2),
        (128, 512, 4),
    )
    return {
        f"BN {bn} {row} bytes s{s}": {"BN": bn, "BK": row // itemsize, "split_k": s}
        for bn, row, s in plans
    }


def decode(m: int, *, dtype: torch.dtype) -> Case:
    n = k = 8192
    if dtype == E4M3:
        made = fp8(m, n, k, fast=False, bar=1.0)
        made.bars = [(OURS, "cuBLAS fast", 1.0)]
        made.theirs = {"cuBLAS fast": lambda t: scaled_mm(t, fast=True)}
        made.ours["fast"] = Ours(
            fp8_product, lambda t: (t["a"], t["b"], t["c"], fp8_matmul.FAST), tiles(m, n)
        )
        made.limit, made.sweep = 1e-2, few_rows(1)
        return made

    def make(device: str) -> Tensors:
        return {
            "a": normal(device, m, k), "b": normal(device, n, k).t(), "c": empty(device, m, n),
        }  # fmt: skip

    return Case(
        make,
        {OURS: Ours(matmul, lambda t: (t["a"], t["b"], t["c"]), tiles(m, n))},
        {"cuBLAS": lambda t: torch.matmul(t["a"], t["b"])},
        lambda t: t["a"].double() @ t["b"].double(),
        2.0 * m * n * k,
        [(OURS, "cuBLAS", 1.0)],
        moved=2.0 * (m * k + n * k + m * n),
        sweep=few_rows(2),
    )


# ---------------------------------------------------------------------- work on the result
def with_epilogue(kind: str, k: int = 4096, bar: float = 0.97) -> Case:
    m, n = 8192, 8192

    def make(device: str) -> Tensors:
        return {
            "a": normal(device, m, k), "b": normal(device, n, k).t(), "bias": normal(device, n),
            "old": normal(device, m, n), "c": empty(device, m, n),
        }  # fmt: skip

    def product(t: Tensors) -> torch.Tensor:
        return t["a"].double() @ t["b"].double()

    def gelu(t: Tensors) -> torch.Tensor:
        return torch.nn.functional.gelu(0.02 * product(t) + t["bias"].double())

    forms = {
        "gelu": (epilogue.linear, lambda t: (t["a"], t["b"], t["bias"], t["c"], 0.02), gelu),
        "residual": (
            fused_epilogues.residual,
            lambda t: (t["a"], t["b"], t["old"], t["c"]),
            lambda t: product(t) + t["old"].double(),
        ),
        "norm": (
            norm_matmul.norm_matmul,
            lambda t: (t["a"], t["b"], t["c"], 1e-6),
            lambda t: norm_matmul.reference(t["a"], t["b"]),
        ),
    }
    kernel, args, want = forms[kind]
    return Case(
        make,
        {
            OURS: Ours(kernel, args, tiles(m, n)),
            "bare product": Ours(matmul, lambda t: (t["a"], t["b"], t["c"]), tiles(m, n), out=""),
        },
        {},
        want,
        2.0 * m * n * k,
        [(OURS, "bare product", bar)],
    )


# ---------------------------------------------------------------------- fp8 attention, weights
def fp8_heads(z: int, heads: int, length: int, *, causal: bool) -> Case:
    """Against our bf16 forward of the same numbers; scales are 1."""
    d = 128

    def make(device: str) -> Tensors:
        made = {x: normal(device, z, heads, length, d, dtype=E4M3) for x in "qk"}
        made["vt"] = normal(device, z, heads, d, length, dtype=E4M3)
        made["scales"] = torch.ones(z, heads, 2, device=device)
        made["eighths"] = fp8_attention.eighths(device)
        if device != "meta":
            made["v"] = made["vt"].transpose(2, 3).to(BF16).contiguous()
            made |= {f"{x}16": made[x].to(BF16) for x in "qk"}
        return {**made, "c": empty(device, z, heads, length, d)}

    def head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q.double() @ k.double().t() * d**-0.5
        if causal:
            scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        return scores.softmax(-1) @ v.double()

    def want(t: Tensors) -> torch.Tensor:
        flat = [t[x].flatten(0, 1) for x in ("q", "k", "v")]
        return torch.stack([head(*x) for x in zip(*flat, strict=True)]).view(t["c"].shape)

    kernel, sizes = fp8_attention.fp8_attention_kernel, fp8_attention.tiles(d, causal=causal)
    names = ("q", "k", "vt", "scales", "eighths", "c")
    return Case(
        make,
        {
            OURS: Ours(
                kernel,
                lambda t: (*(t[x] for x in names), d**-0.5, causal, d),
                (tl.cdiv(length, sizes["BM"]), heads, z),
                {"fast_math": True, **sizes},
            )
        },
        {"our bf16": lambda t: attention.attention(t["q16"], t["k16"], t["v"], causal=causal)[0]},
        want,
        4.0 * z * heads * length * length * d * (0.5 if causal else 1.0),
        [(OURS, "our bf16", 1.0 if causal else 1.3)],
        5e-2,
    )


def widened(kind: str, m: int) -> Case:
    """Quantised weights against bf16 ones."""
    n = k = 8192

    def make(device: str) -> Tensors:
        wide = normal(device, n, k, dtype=F32)
        if device == "meta":
            halves, is_small = kind in ("int4", "groups"), kind == "fp8"
            small = empty(
                device, n, k // 2 if halves else k, dtype=E4M3 if is_small else torch.int8
            )
            scales = empty(device, n, dtype=F32)
            if kind == "groups":
                scales = empty(device, k // 128, n)
        else:
            small, scales = weight_only.quantised(wide, kind)
        return {
            "x": normal(device, m, k), "w": small, "scales": scales, "b": wide.to(BF16).t(),
            "c": empty(device, m, n),
        }  # fmt: skip

    kernel = weight_only.KERNELS[kind]
    return Case(
        make,
        {
            OURS: Ours(
                kernel,
                lambda t: (t["w"], t["x"], t["scales"], t["c"]),
                weight_only.tiles(m, n),
            )
        },
        {"cuBLAS bf16": lambda t: torch.matmul(t["x"], t["b"])},
        lambda t: t["x"].double() @ weight_only.widened(t["w"], t["scales"], kind, k).t(),
        2.0 * m * n * k,
        [(OURS, "cuBLAS bf16", 1.0 if m <= 64 else 0.85)],
        moved=n * k * (0.5 if kind in ("int4", "groups") else 1.0) + 2.0 * m * (k + n),
    )


KS = (512, 1024, 2048, 4096, 8192, 16384)
GROUPS: dict[str, dict[str, Callable[[], Case]]] = {
    "fp8-fast": {
        f"fp8-fast-8192x8192x{k}": lambda k=k: fp8(8192, 8192, k, fast=True, bar=1.0) for k in KS
    },
    "fp8": {f"fp8-8192x8192x{k}": lambda k=k: fp8(8192, 8192, k, fast=False, bar=1.0) for k in KS},
    "block-scaled": {
        f"block-scaled-{m}x{n}x{k}": lambda s=(m, n, k): block_scaled(*s)
        for m, n, k in (
            (8192, 8192, 4096), (8192, 8192, 7168), (4096, 7168, 2048), (512, 7168, 2048), (64, 7168, 2048),
        )
    },
    "block-scaled-few": {
        f"block-scaled-{m}x7168x{k}": lambda m=m, k=k: block_scaled(m, 7168, k)
        for k in (2048, 4096, 7168) for m in (16, 32, 64, 128, 256)
    },
    "grouped": {
        "grouped-8": lambda: grouped(8, 32768, 4096, 4096),
        "grouped-64": lambda: grouped(64, 131072, 4096, 2048),
    },
    "batched": {
        "batched-16x2048x2048x1024": lambda: batched(16, 2048, 2048, 1024),
        "batched-64x512x512x512": lambda: batched(64, 512, 512, 512),
        "batched-shared-16x2048x2048x1024": lambda: batched(16, 2048, 2048, 1024, shared=True),
    },
    "decode": {
        f"decode-{name}-{m}": lambda m=m, d=d: decode(m, dtype=d)
        for name, d in (("bf16", BF16), ("fp8", E4M3)) for m in (1, 16, 32, 64)
    },
    "fp8-attention": {
        "fp8-attention-16384": lambda: fp8_heads(1, 16, 16384, causal=False),
        "fp8-attention-16384-causal": lambda: fp8_heads(1, 16, 16384, causal=True),
    },
    "weights": {
        f"weights-{kind}-{m}": lambda kind=kind, m=m: widened(kind, m)
        for kind in ("int8", "int4", "groups", "fp8") for m in (1, 16, 64, 4096)
    },
    "epilogue": {f"epilogue-{kind}": lambda kind=kind: with_epilogue(kind) for kind in ("gelu", "residual")}
    | {
        "epilogue-residual-1024": lambda: with_epilogue("residual", 1024, 0.9),
        "epilogue-norm": lambda: with_epilogue("norm", bar=0.95),
    },
}  # fmt: skip
MEANS = {"fp8-fast": 1.12, "fp8": 1.05, "batched": 1.05}
"""Geometric means to reach, by group."""
CASES = {name: make for group in GROUPS.values() for name, make in group.items()}


# ---------------------------------------------------------------------- the worker
def plan_of(kernel: Any) -> str:
    """A compiled kernel's plan in a few words."""
    tile = {n: kernel.constants.get(n, "-") for n in ("BM", "BN", "BK")}
    return describe(types.SimpleNamespace(plan=kernel.plan, constants=tile))


def launch_of(ours: Ours, sets: list[Tensors]) -> Callable[[int], None]:
    bound = ours.kernel[ours.grid]
    args = [ours.args(t) for t in sets]
    options = ours.options
    return lambda i: bound(*args[i], **options)


class Runner:
    """All contenders of one case, checked and timed."""

    def __init__(self, job: dict[str, Any], options: argparse.Namespace, say: Callable[..., None]):
        self.case = CASES[job["shape"]]()
        self.bad, self.options, self.say = set(job["bad"]), options, say
        first = self.case.tensors("cuda")
        size = sum(t.numel() * t.element_size() for t in first.values())
        count = max(2, min(16, -(-SET_BYTES // size)))
        self.sets = [first, *(self.case.tensors("cuda") for _ in range(count - 1))]
        self.want = self.case.want(first)

    def contenders(self) -> dict[str, tuple[Callable[[int], object], dict[str, Any]]]:
        case, found = self.case, {}
        ours = dict(case.ours)
        if self.options.sweep:
            main = case.ours[OURS]
            for name, more in case.sweep.items():
                options = {**main.options, **more}
                ours[name] = Ours(main.kernel, main.args, main.grid, options, main.out, main.before)
        for name, item in ours.items():
            if name in self.bad:
                continue
            self.say(at=name)
            made = self.our(name, item)
            if made is not None:
                found[name] = made
        for name, function in case.theirs.items():
            if name in self.bad:
                continue
            self.say(at=name)
            try:
                error = self.error(function(self.sets[0]))
            except (RuntimeError, AttributeError, TypeError, ValueError) as why:
                self.say(row={"name": name, "refused": str(why).splitlines()[0][:160]})
                continue
            found[name] = (lambda i, f=function: f(self.sets[i]), {"error": error})
        return found

    def our(self, name: str, item: Ours) -> tuple[Callable[[int], object], dict[str, Any]] | None:
        item.kernel.forget()  # Or it may run on the plan of a case before, not on the one shown.
        try:
            kernel = item.kernel.compile(*item.args(self.sets[0]), grid=item.grid, **item.options)
        except tiledsl.TileError as why:
            self.say(row={"name": name, "refused": str(why).splitlines()[0][:160]})
            return None
        if item.before is not None:
            for t in self.sets:
                item.before(t)
        launch = launch_of(item, self.sets)
        facts = {"plan": plan_of(kernel), "notes": [n for n in kernel.notes if "given up" in n]}
        if item.out:
            self.sets[0][item.out].fill_(float("nan"))
        launch(0)
        torch.cuda.synchronize()
        facts["error"] = self.error(self.sets[0][item.out]) if item.out else 0.0
        if facts["error"] <= self.case.limit:
            return launch, facts
        self.say(row={"name": name, "wrong": facts["error"], **facts})
        return None

    def error(self, got: torch.Tensor | None) -> float:
        assert got is not None
        return ((got.double() - self.want).norm() / self.want.norm()).item()

    def run(self) -> None:
        found = self.contenders()
        self.want = torch.empty(0)
        sets = len(self.sets)
        self.say(at="timing")
        trial = capture(next(iter(found.values()))[0], sets, sets)
        start, end = replay(trial)
        torch.cuda.synchronize()
        each = start.elapsed_time(end) / sets
        n = -(-max(4, min(800, int(self.options.block_ms / each))) // sets) * sets
        graphs = []
        for name, (launch, _) in found.items():
            self.say(at=name)
            graphs.append(capture(launch, n, sets))
        self.say(at="timing")
        times = timed(graphs, n, self.options.rounds)
        for (name, (_, facts)), t in zip(found.items(), times, strict=True):
            middle = statistics.median(t)
            spread = (max(t) - min(t)) / middle
            self.say(row={"name": name, "us": middle, "spread": spread, **facts})


# ---------------------------------------------------------------------- the table
class Parent(harness.Parent):
    """Drives workers of this script."""

    script = Path(__file__).resolve()
    baseline = OURS


def compile_case(name: str, *, sweep: bool) -> str:
    """Compiles the kernels of a case from shapes alone, for the cache on disk; "" or what failed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        case = CASES[name]()
        tensors = case.tensors("meta")
        jobs = [(o, o.options) for o in case.ours.values()]
        jobs += [(case.ours[OURS], more) for more in case.sweep.values()] if sweep else []
        for ours, options in jobs:
            ours.kernel.compile(*ours.args(tensors), grid=ours.grid, **options)
    except tiledsl.TileError as error:
        return f"{name}: {error}".splitlines()[0]
    return ""


def precompile(names: list[str], *, sweep: bool) -> None:
    """Compiles all cases, several at a time."""
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    workers = min(len(names), os.cpu_count() or 1, 16)
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        for failed in [pool.submit(compile_case, name, sweep=sweep) for name in names]:
            if failed.result():
                print(f"  not compiled: {failed.result()}")
    print(f"compiled in {time.monotonic() - start:.0f} s by {workers} processes")


def table_row(name: str, rows: list[dict[str, Any]]) -> tuple[str, list[float | None]]:
    """The line of a case, and its ratios to its baselines."""
    case = CASES[name]()
    found = {r["name"]: r for r in rows}
    ours = found.get(OURS, {})
    if "us" not in ours:
        why = ours.get("refused") or (
            f"error {ours['wrong']:.1e}" if "wrong" in ours else "no time"
        )
        return f"{name:34} FAILED: {why}", [None] * len(case.bars)
    rate = case.flops / ours["us"] / 1e6
    line = f"{name:34} {ours['plan']:38} {ours['us']:8.1f} us {rate:6.0f} TF"
    if case.moved:
        line += f" {case.moved / ours['us'] / 1e6:5.2f} TB/s"
    line += f"  error {ours['error']:.1e}"
    ratios: list[float | None] = []
    for mine, base, bar in case.bars:
        a, b = found.get(mine, {}).get("us"), found.get(base, {}).get("us")
        ratio = b / a if a and b else None
        ratios.append(ratio)
        if ratio is None:
            line += f"  {base}: {found.get(base, {}).get('refused', 'no time')[:60]}"
            continue
        error = found[base]["error"]
        shown = f", error {error:.1e}" if error else ""
        line += f"  {base} {b:.1f} us{shown}: {ratio:.3f} (bar {bar:.2f}{'' if ratio >= bar else ' MISSED'})"
    for other in [n for n in case.ours if n != OURS and n not in {b for _, b, _ in case.bars}]:
        if "us" in found.get(other, {}):
            line += f"  {other} {found[other]['us']:.1f} us ({found[other]['plan']})"
    return line, ratios


def print_more(rows: list[dict[str, Any]], *, sweep: bool) -> None:
    """Notes, wrong results, and the plans of a sweep."""
    for r in rows:
        for note in r.get("notes", []) if r["name"] == OURS else []:
            print(f"    note: {note}")
        if "wrong" in r:
            print(f"    WRONG {r['name']}: error {r['wrong']:.1e} ({r.get('plan', '')})")
    if sweep:
        for r in sorted((r for r in rows if "us" in r), key=lambda r: r["us"]):
            print(f"    {r['us']:8.1f} us  {r.get('plan', ''):42} {r['name']}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    out.add_argument("--groups", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    out.add_argument("--rows", nargs="*", choices=list(CASES), default=[])
    out.add_argument("--sweep", action="store_true", help="also other plans")
    out.add_argument("--budget", type=float, default=500, help="seconds for everything")
    out.add_argument("--timeout", type=float, default=25, help="seconds without progress: a hang")
    out.add_argument("--rounds", type=int, default=8)
    out.add_argument("--block-ms", type=float, default=8)
    out.add_argument("--json", default="", help="file for all rows ($OUT/bench_gemm_family.json)")
    return out


def main() -> int:
    """Prints the table."""
    options = parser().parse_args()
    if options.worker:
        serve(lambda job, say: Runner(job, options, say).run())
    if not torch.cuda.is_available():
        print("bench_gemm_family: torch sees no CUDA device, nothing to time")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    start = time.monotonic()
    chosen = {
        group: [n for n in cases if not options.rows or n in options.rows]
        for group, cases in GROUPS.items()
        if group in options.groups
    }
    precompile([n for names in chosen.values() for n in names], sweep=options.sweep)
    parent = Parent(options)
    everything: dict[str, list[dict[str, Any]]] = {}
    for group, names in chosen.items():
        ratios: list[float] = []
        for name in names:
            if time.monotonic() > parent.end:
                print(f"{name:34} not run: the budget ended")
                continue
            rows = everything[name] = parent.job(name, "")
            line, found = table_row(name, rows)
            ratios += [r for r in found[:1] if r is not None]
            print(line, flush=True)
            print_more(rows, sweep=options.sweep)
        if ratios and group in MEANS:
            mean = statistics.geometric_mean(ratios)
            good = mean >= MEANS[group] and len(ratios) == len(names)
            print(
                f"  {group}: geomean {mean:.3f} (bar {MEANS[group]:.2f}): {'ok' if good else 'MISSED'}"
            )
    parent.kill()
    print(f"{time.monotonic() - start:.0f} s")
    folder = os.environ.get("OUT", "")
    target = options.json or (os.path.join(folder, "bench_gemm_family.json") if folder else "")
    if target:
        Path(target).write_text(json.dumps(everything, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
