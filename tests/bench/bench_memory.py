"""Times the memory-bound examples against a device copy of as many bytes, Triton and torch.

    python3 tests/bench/bench_memory.py [--rows NAME ...] [--wide] [--no-triton]

Method as in bench_matmul: random inputs in rotating sets beyond the L2 cache, each contender a CUDA
graph of n launches, blocks of all contenders in turn, medians; each is checked against fp64 with poisoned
outputs before it is timed. The floor of a kernel that reads R and writes W bytes is the time in which
`copy_` moves (R + W) / 2 bytes. Triton gets the same source with its imports swapped, once with its
default number of warps and once with that of its tutorials; the faster one counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import tiledsl  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.harness import capture  # noqa: E402
from tests.bench.harness import replay  # noqa: E402
from tests.bench.harness import serve  # noqa: E402
from tests.bench.harness import timed  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LIMITS = {"bf16": 6e-3, "fp32": 3e-6}
TENSOR_BYTES = 100_000_000
OURS, COPY, TORCH = "ours", "copy", "torch"
TRITON = ("triton", "triton, tutorial's warps")
WIDTHS = (256, 1024, 4096, 5000, 16384, 50257, 131072)
MORE_WIDTHS = (512, 2048, 8192, 32768, 65536)
Launch = Callable[[int], Any]


@dataclass(frozen=True)
class Row:
    """One line of the table: a kernel, a dtype, a width, and what share of the floor it has to reach."""

    kind: str
    dtype: str
    width: int
    bar: float = 0.97

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.dtype}-{self.width}"


# ---------------------------------------------------------------------- kinds of rows
class Problem:
    """Inputs of one set. outputs(module, i, options) runs a contender on set i.

    moved: bytes read and written at least.
    """

    example = ""

    def __init__(self, row: Row, count: int) -> None:
        self.row, self.n = row, row.width
        self.dtype = DTYPES[row.dtype]
        self.m = max(1, TENSOR_BYTES // (self.n * self.dtype.itemsize))
        self.sets = [self.inputs() for _ in range(count)]

    def random(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype or self.dtype)

    def matrix(self) -> torch.Tensor:
        return self.random(self.m, self.n)

    @property
    def bytes(self) -> int:
        """Of one matrix."""
        return self.m * self.n * self.dtype.itemsize

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (self.matrix(),)

    def moved(self) -> int:
        return 2 * self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        raise NotImplementedError

    def torch(self, i: int) -> Any:
        raise NotImplementedError

    def want(self) -> Any:
        """What is right, in fp64."""
        raise NotImplementedError

    def wanted_for(self, got: list[torch.Tensor]) -> list[torch.Tensor]:
        """The same, where it depends on random numbers that a result shows."""
        raise NotImplementedError


class Softmax(Problem):
    example = "softmax"

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.softmax(*self.sets[i], **options)

    def torch(self, i: int) -> Any:
        return torch.softmax(self.sets[i][0], -1)

    def want(self) -> Any:
        return self.sets[0][0].double().softmax(-1)


class RmsNorm(Problem):
    example = "norms"
    centred = False

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (self.matrix(), self.random(self.n), self.random(self.n))

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        x, w, b = self.sets[i]
        return module.forward(x, w, b if self.centred else None, 1e-5, **options)[0]

    def torch(self, i: int) -> Any:
        return self.function(*self.sets[i])

    def function(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.centred:
            return torch.nn.functional.layer_norm(x, (self.n,), w, b, 1e-5)
        return torch.nn.functional.rms_norm(x, (self.n,), w, 1e-5)

    def want(self) -> Any:
        return self.function(*(t.double() for t in self.sets[0]))


class LayerNorm(RmsNorm):
    centred = True


class RmsNormBackward(RmsNorm):
    def inputs(self) -> tuple[torch.Tensor, ...]:
        x, w, b = super().inputs()
        mean = x.float().mean(-1) if self.centred else torch.zeros(self.m, device="cuda")
        square = (x.float() - mean[:, None]).square().mean(-1)
        return (self.matrix(), x, w, mean, (square + 1e-5).rsqrt(), b)

    def moved(self) -> int:
        return 3 * self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        found = module.backward(*self.sets[i][:5], centred=self.centred, **options)
        return found[: 2 + self.centred]

    def torch(self, i: int) -> Any:
        dy, x, w, mean, rstd, b = self.sets[i]
        shape, columns = [self.n], (mean[:, None], rstd[:, None])
        if self.centred:
            masks = [True, True, True]
            return torch.ops.aten.native_layer_norm_backward(dy, x, shape, *columns, w, b, masks)
        return torch.ops.aten._fused_rms_norm_backward(dy, x, shape, columns[1], w, [True, True])

    def want(self) -> Any:
        dy, x, w, _, _, b = self.sets[0]
        exact = [t.double().requires_grad_() for t in (x, w, b)][: 2 + self.centred]
        y = self.function(*exact, *([b] if not self.centred else []))
        return torch.autograd.grad(y, exact, dy.double())


class LayerNormBackward(RmsNormBackward):
    centred = True


class CrossEntropy(Problem):
    example = "cross_entropy"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (self.matrix(), torch.randint(0, self.n, (self.m,), device="cuda"))

    def moved(self) -> int:
        return self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.forward(*self.sets[i], **options)[0]

    def torch(self, i: int) -> Any:
        return torch.nn.functional.cross_entropy(*self.sets[i], reduction="none")

    def want(self) -> Any:
        x, target = self.sets[0]
        return torch.nn.functional.cross_entropy(x.double(), target, reduction="none")


class CrossEntropyBackward(CrossEntropy):
    def inputs(self) -> tuple[torch.Tensor, ...]:
        x, target = super().inputs()
        return (x, target, x.float().logsumexp(-1), self.random(self.m, dtype=torch.float32))

    def moved(self) -> int:
        return 2 * self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.backward(*self.sets[i], **options)

    def torch(self, i: int) -> Any:
        raise NotImplementedError("takes two kernels and the saved log-softmax")

    def want(self) -> Any:
        x, target, _, dloss = self.sets[0]
        hot = torch.nn.functional.one_hot(target, self.n)
        return (x.double().softmax(-1) - hot) * dloss.double()[:, None]


class VectorAdd(Problem):
    example = "vector_add"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (self.matrix().view(-1), self.matrix().view(-1))

    def moved(self) -> int:
        return 3 * self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.add(*self.sets[i], **options)

    def torch(self, i: int) -> Any:
        return torch.add(*self.sets[i])

    def want(self) -> Any:
        x, y = self.sets[0]
        return x.double() + y.double()


class SwiGLU(VectorAdd):
    example = "swiglu"

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.forward(*self.sets[i], **options)

    def torch(self, i: int) -> Any:
        raise NotImplementedError("takes two kernels")

    def want(self) -> Any:
        x, y = self.sets[0]
        return torch.nn.functional.silu(x.double()) * y.double()


class Sum(Problem):
    example = "reductions"

    def moved(self) -> int:
        return self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.total(self.sets[i][0], **options)

    def torch(self, i: int) -> Any:
        return self.sets[i][0].sum(dtype=torch.float32)

    def want(self) -> Any:
        return self.sets[0][0].double().sum()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (self.matrix().abs_(),)


class Transpose(Problem):
    example = "transpose"

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.transpose(self.sets[i][0])

    def torch(self, i: int) -> Any:
        return self.sets[i][0].t().contiguous()

    def want(self) -> Any:
        return self.sets[0][0].t().double()


class Rope(Problem):
    """Batches of 4096 tokens with heads of 128; the width is of all heads of a token."""

    example = "rope"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        from examples import rope

        shape = (max(1, self.m // 4096), 4096, self.n // 128, 128)
        return (self.random(*shape), *rope.angles(4096, 128, "cuda"))

    def moved(self) -> int:
        return 2 * self.sets[0][0].nbytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.turn(*self.sets[i], back=False)

    def torch(self, i: int) -> Any:
        raise NotImplementedError("takes several kernels")

    def want(self) -> Any:
        from examples import rope

        x, cos, sin = self.sets[0]
        return rope.reference(x.double(), cos, sin)


class Dropout(Problem):
    """Checked by what was kept, and by the share of it."""

    example = "dropout"
    p = 0.3

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.drop(self.sets[i][0], self.p, 42, **options)

    def torch(self, i: int) -> Any:
        return torch.nn.functional.dropout(self.sets[i][0], self.p)

    def want(self) -> Any:
        return []

    def wanted_for(self, got: list[torch.Tensor]) -> list[torch.Tensor]:
        kept = got[0] != 0
        share = abs(kept.double().mean().item() - (1 - self.p))
        scale = 1 / (1 - self.p) if share < 1e-3 else float("nan")
        return [self.sets[0][0].double() * kept * scale]


class GroupedSum(Problem):
    """Groups of 1 to 200 rows."""

    example = "reductions"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        sizes = torch.randint(1, 201, (self.m,), device="cuda").cumsum(0)
        inner = sizes[sizes < self.m]
        starts = torch.cat((inner.new_zeros(1), inner, inner.new_full((1,), self.m)))
        return (self.matrix(), starts.int())

    def moved(self) -> int:
        x, starts = self.sets[0]
        return x.nbytes + (len(starts) - 1) * self.n * x.itemsize

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.grouped_sum(*self.sets[i])

    def torch(self, i: int) -> Any:
        x, starts = self.sets[i]
        return torch.segment_reduce(x, "sum", offsets=starts.long(), axis=0)

    def want(self) -> Any:
        x, starts = self.sets[0]
        return torch.segment_reduce(x.double(), "sum", offsets=starts.long(), axis=0)


class Histogram(Problem):
    """Integers in 256 bins."""

    example = "histogram"

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return (torch.randint(0, 256, (self.m * self.n,), device="cuda", dtype=torch.int32),)

    def moved(self) -> int:
        return self.sets[0][0].nbytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.histogram(self.sets[i][0], 256)

    def torch(self, i: int) -> Any:
        return torch.histc(self.sets[i][0], 256, 0, 255)

    def want(self) -> Any:
        return torch.bincount(self.sets[0][0].long(), minlength=256).double()


class TopK(Problem):
    """The 8 largest of each row."""

    example = "top_k"

    def moved(self) -> int:
        return self.bytes

    def ours(self, module: ModuleType, i: int, options: dict[str, int]) -> Any:
        return module.top_k(self.sets[i][0], 8)[0]

    def torch(self, i: int) -> Any:
        return self.sets[i][0].topk(8).values

    def want(self) -> Any:
        return self.sets[0][0].topk(8).values.double()


KINDS: dict[str, type[Problem]] = {
    "dropout": Dropout,
    "grouped_sum": GroupedSum,
    "histogram": Histogram,
    "top_k": TopK,
    "softmax": Softmax,
    "rms_norm": RmsNorm,
    "layer_norm": LayerNorm,
    "rms_norm_backward": RmsNormBackward,
    "layer_norm_backward": LayerNormBackward,
    "cross_entropy": CrossEntropy,
    "cross_entropy_backward": CrossEntropyBackward,
    "vector_add": VectorAdd,
    "swiglu": SwiGLU,
    "sum": Sum,
    "transpose": Transpose,
    "rope": Rope,
}
BOTH = ("bf16", "fp32")
FORWARD = ("softmax", "rms_norm", "layer_norm")
MAIN = [
    *[Row(k, t, 8192) for k in ("vector_add", "sum", "transpose") for t in BOTH],
    *[Row(k, t, n) for k in FORWARD for t in BOTH for n in WIDTHS],
    *[Row(f"{k}_norm_backward", t, n, 0.9)
      for k in ("rms", "layer") for t in BOTH for n in (1024, 4096, 8192)],
    *[Row(k, "bf16", n) for k in ("cross_entropy", "cross_entropy_backward")
      for n in (32000, 50257, 128256)],
    Row("cross_entropy", "fp32", 50257),
    Row("swiglu", "bf16", 8192),
    Row("rope", "bf16", 2048),
    Row("dropout", "bf16", 8192, 0),
    Row("grouped_sum", "fp32", 2048, 0),
    Row("histogram", "fp32", 8192, 0),
    Row("top_k", "fp32", 1024, 0),
]  # fmt: skip
WIDE = [
    *[Row(k, t, n) for k in FORWARD for t in BOTH for n in MORE_WIDTHS],
    *[Row(f"{k}_norm_backward", t, n, 0.9)
      for k in ("rms", "layer") for t in BOTH for n in (5000, 16384, 32768)],
]  # fmt: skip
ROWS = {r.name: r for r in MAIN + WIDE}


# ---------------------------------------------------------------------- contenders
def example_module(name: str, *, triton: bool) -> ModuleType:
    """An example; through Triton's compiler where asked, from the same text with the imports swapped."""
    path = ROOT / "examples" / f"{name}.py"
    if triton:
        text = path.read_text(encoding="utf-8")
        swapped = text.replace("import tiledsl as triton\n", "import triton\n").replace(
            "import tiledsl.language as tl\n", "import triton.language as tl\n"
        )
        if "tiledsl" in swapped:
            raise NotImplementedError("written with tensor parameters")
        path = Path(tempfile.mkdtemp(prefix="bench-memory-")) / f"{name}_through_triton.py"
        path.write_text(swapped, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tutorial_warps(width: int) -> int:
    """Warps of a row as Triton's tutorials choose them, up to the 16 that wide rows need."""
    return min(max(width // 256, 4), 16)


class Measurement:
    """All contenders of one row, checked and timed."""

    def __init__(self, job: dict[str, Any], options: argparse.Namespace, say: Callable[..., None]):
        self.row = ROWS[job["shape"]]
        self.bad = set(job["bad"])
        self.options = options
        self.say = say
        self.problem = KINDS[self.row.kind](self.row, 2)
        want = self.problem.want()
        self.want = list(want) if isinstance(want, tuple | list) else [want]

    def makers(self) -> dict[str, Callable[[], Launch]]:
        p = self.problem

        def compiled(*, triton: bool, **options: int) -> Launch:
            module = example_module(p.example, triton=triton)
            return lambda i: p.ours(module, i, options)

        out: dict[str, Callable[[], Launch]] = {OURS: lambda: compiled(triton=False)}
        if not self.options.no_triton:
            warps = tutorial_warps(self.row.width)
            out[TRITON[0]] = lambda: compiled(triton=True)
            if warps != 4:
                out[TRITON[1]] = lambda: compiled(triton=True, num_warps=warps)
        out[TORCH] = lambda: p.torch
        return out

    def error(self, launch: Launch) -> float:
        """The largest relative error; new memory is NaN."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            got = launch(0)
            torch.cuda.synchronize()
        finally:  # Else what is captured later fills its results first, too.
            torch.use_deterministic_algorithms(False)
        found = list(got) if isinstance(got, tuple | list) else [got]
        pairs = zip(found, self.want or self.problem.wanted_for(found), strict=False)
        errors = [((g.double() - w).norm() / w.norm()).item() for g, w in pairs]
        return max(float("inf") if math.isnan(e) else e for e in errors)

    def contenders(self) -> list[tuple[str, Launch, dict[str, Any]]]:
        out: list[tuple[str, Launch, dict[str, Any]]] = []
        for name, make in self.makers().items():
            if name in self.bad:
                continue
            self.say(at=name)
            try:
                launch = make()
                error = self.error(launch)
            except (AttributeError, ImportError, NotImplementedError, tiledsl.TileError) as problem:
                self.say(row={"name": name, "refused": str(problem).splitlines()[0][:160]})
                continue
            except Exception as problem:
                if name == OURS or "CUDA error" in str(problem):
                    raise
                text = f"{type(problem).__name__}: {problem}".splitlines()[0]
                self.say(row={"name": name, "refused": text[:160]})
                continue
            if not error <= LIMITS[self.row.dtype] and name != TORCH:
                self.say(row={"name": name, "wrong": error})
                continue
            out.append((name, launch, {"error": error}))
        self.want.clear()
        return out

    def copy(self) -> Launch:
        """A copy that moves as many bytes."""
        half = self.problem.moved() // 2
        pairs = [
            [torch.empty(half, device="cuda", dtype=torch.int8).zero_() for _ in range(2)]
            for _ in self.problem.sets
        ]
        return lambda i: pairs[i][1].copy_(pairs[i][0])

    def run(self) -> None:
        """Times all contenders in turn and says the medians."""
        contenders = [*self.contenders(), (COPY, self.copy(), {})]
        self.say(at="timing")
        sets = len(self.problem.sets)
        first = capture(contenders[-1][1], sets, sets)
        start, end = replay(first)
        torch.cuda.synchronize()
        n = max(1, round(self.options.block_ms / start.elapsed_time(end))) * sets
        graphs: list[torch.cuda.CUDAGraph] = []
        for name, launch, _ in contenders:
            self.say(at=name)
            graphs.append(capture(launch, n, sets))
        self.say(at="timing")
        times = timed(graphs, n, self.options.rounds)
        for (name, _, facts), t in zip(contenders, times, strict=True):
            middle = statistics.median(t)
            spread = (max(t) - min(t)) / middle
            gb = self.problem.moved() / middle / 1e3
            self.say(row={"name": name, "us": middle, "spread": spread, "gbps": gb, **facts})


def work(options: argparse.Namespace) -> None:
    """The worker."""
    serve(lambda job, say: Measurement(job, options, say).run())


# ---------------------------------------------------------------------- the table
class Parent(harness.Parent):
    """Drives workers of this script."""

    script = Path(__file__).resolve()
    baseline = COPY


def times_of(found: list[dict[str, Any]]) -> dict[str, float]:
    """Microseconds of the contenders that ran; the faster Triton under its first name."""
    times = {r["name"]: r["us"] for r in found if "us" in r}
    triton = [times[t] for t in TRITON if t in times]
    return {**times, **({TRITON[0]: min(triton)} if triton else {})}


def table_row(row: Row, found: list[dict[str, Any]]) -> str:
    """The line of one row: our time and rate, then the time of the others over ours."""
    times = times_of(found)
    mine = next((r for r in found if r["name"] == OURS), {})
    if "us" not in mine or COPY not in times:
        why = mine.get("refused") or (f"error {mine['wrong']:.1e}" if "wrong" in mine else "")
        why = why or next((r["refused"] for r in found if "refused" in r), "no time")
        return f"{row.name:36} FAILED: {why}"
    line = f"{row.name:36} {mine['us']:8.1f} {mine['gbps']:6.0f} {mine['error']:8.1e}"
    for name in (COPY, TRITON[0], TORCH):
        line += f" {times[name] / mine['us']:7.3f}" if name in times else f" {'-':>7}"
    missed = "" if times[COPY] / mine["us"] >= row.bar else "  MISSED"
    return f"{line}   (spread {100 * mine['spread']:.0f} %){missed}"


def print_bars(results: dict[str, list[dict[str, Any]]]) -> None:
    """What must be reached: each row its share of the floor, Triton's speed on the whole."""
    shares: dict[str, float] = {}
    to_triton: dict[str, float] = {}
    for name, found in results.items():
        times = times_of(found)
        if OURS in times and COPY in times:
            shares[name] = times[COPY] / times[OURS]
        if OURS in times and TRITON[0] in times:
            to_triton[name] = times[TRITON[0]] / times[OURS]
    missed = [n for n, share in shares.items() if share < ROWS[n].bar]
    untimed = [n for n in results if n not in shares]
    print(f"floors: {len(shares) - len(missed)} of {len(results)} rows reach their bar"
          + (f"; not timed: {', '.join(untimed)}" if untimed else ""))  # fmt: skip
    if to_triton:
        geomean = statistics.geometric_mean(to_triton.values())
        worst = min(to_triton, key=lambda n: to_triton[n])
        good = geomean >= 1 and to_triton[worst] >= 0.9
        print(
            f"to Triton: geomean {geomean:.3f} (bar 1.00), worst {to_triton[worst]:.3f} at {worst}"
            f" (floor 0.90): {'ok' if good else 'MISSED'}"
        )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    out.add_argument("--rows", nargs="*", metavar="ROW", help="by name or by its beginning")
    out.add_argument("--wide", action="store_true", help="also the other widths")
    out.add_argument("--no-triton", action="store_true", help="leave Triton out")
    out.add_argument("--budget", type=float, default=200, help="seconds for everything")
    out.add_argument("--timeout", type=float, default=25, help="seconds without progress: a hang")
    out.add_argument("--rounds", type=int, default=8)
    out.add_argument("--block-ms", type=float, default=4)
    out.add_argument("--json", default="", help="file for all rows ($OUT/bench_memory.json)")
    return out


def main() -> int:
    """Prints the table."""
    options = parser().parse_args()
    if options.worker:
        work(options)
    if not torch.cuda.is_available():
        print("bench_memory: torch sees no CUDA device, nothing to time")
        return 0
    chosen = [r.name for r in MAIN + (WIDE if options.wide else [])]
    if options.rows:
        chosen = [name for name in ROWS if name.startswith(tuple(options.rows))]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(
        f"{'row':36} {'us':>8} {'GB/s':>6} {'error':>8} {'/copy':>7} {'/triton':>7} {'/torch':>7}"
    )
    start = time.monotonic()
    parent = Parent(options)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in chosen:
        if time.monotonic() > parent.end:
            print(f"{name:36} not run: the budget ended")
            continue
        results[name] = found = parent.job(name, ROWS[name].dtype)
        print(table_row(ROWS[name], found), flush=True)
        for r in found:
            if "wrong" in r or ("refused" in r and r["name"] == OURS):
                print(f"    {r['name']}: {r.get('refused') or 'wrong: error ' + str(r['wrong'])}")
    parent.kill()
    print_bars(results)
    print(f"{time.monotonic() - start:.0f} s")
    target = options.json or (
        os.environ.get("OUT", "") and f"{os.environ['OUT']}/bench_memory.json"
    )
    if target:
        Path(target).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
