"""Times the README matmul against cuBLAS, and optionally against other plans and the hand-written kernels.

    python3 tests/bench/bench_matmul.py [--shapes ...] [--dtypes bf16 fp16] [--sweep] [--reference DIR]

Method: random normal inputs in rotating sets (over 200 MB), each contender captured as a CUDA graph of n
launches (about 10 ms), blocks of all contenders in turn, order reversed in every second round, medians.
Only ratios within one run count: the card is power-limited. Each contender is checked against fp64, with
a poisoned output, before it is timed. Work runs in a worker process with a watchdog: a contender that
hangs is named and left out. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import tiledsl  # noqa: E402
import tiledsl.language as tl  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.harness import capture  # noqa: E402
from tests.bench.harness import replay  # noqa: E402
from tests.bench.harness import serve  # noqa: E402
from tests.bench.harness import timed  # noqa: E402

SERIES = [(8192, 8192, k) for k in (512, 1024, 2048, 4096, 8192, 16384)]
SINGLE = [
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (4096, 14336, 4096),
    (4104, 4104, 4104),
    (4160, 4160, 4160),
]
SKINNY = [(128, 4096, 4096), (16, 8192, 8192)]
# Group: shapes, geometric mean to reach, floor for each shape (ratios to cuBLAS).
BARS = {
    "M=N=8192": (SERIES, 1.10, 1.00),
    "single": (SINGLE, 1.03, 0.98),
    "skinny": (SKINNY, 1.00, 1.00),
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {"bf16": 4e-3, "fp16": 1e-3}
FINALISTS = 4
SET_BYTES = 200_000_000


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    """The kernel of the README."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


# ---------------------------------------------------------------------- contenders of --sweep
def large_plans() -> dict[str, dict[str, Any]]:
    """Forced plans for shapes that fill the chip: what won somewhere by hand, and its neighbours."""
    cooperative = {"num_consumers": 2, "ping_pong": False}
    three = {"num_consumers": 3, "ping_pong": False}
    alternating = {"num_consumers": 2, "ping_pong": True}
    out: dict[str, dict[str, Any]] = {}

    def add(kind: str, structure: dict[str, Any], bm: int, bn: int, **more: Any) -> None:
        name = f"{kind} {bm}x{bn} " + " ".join(f"{k}={v}" for k, v in more.items())
        out[name.strip()] = {"BM": bm, "BN": bn, **structure, **more}

    for bn in (192, 176, 160, 128):
        add("pp", alternating, 128, bn, cluster=2)
    add("pp", alternating, 128, 192, cluster=1)
    add("pp", alternating, 128, 192, cluster=2, raster_group=4)
    add("pp", alternating, 128, 192, cluster=2, raster_group=16)
    add("pp", alternating, 128, 208, cluster=2)
    for bn in (256, 224, 208, 192):
        for cluster in (1, 2):
            add("co2", cooperative, 128, bn, cluster=cluster)
    add("co2", cooperative, 128, 256, cluster=1, mma_depth=2)
    add("co2", cooperative, 256, 128, cluster=1)
    add("co2", cooperative, 256, 128, cluster=2)
    add("co2", cooperative, 256, 192, cluster=2)
    add("co3", three, 192, 176, cluster=2)
    add("co3", three, 192, 160, cluster=2)
    add("co3", three, 192, 192, cluster=2)
    add("co3", three, 192, 176, cluster=1)
    return out


def skinny_plans(m: int) -> dict[str, dict[str, Any]]:
    """Forced plans for few rows: split K, narrow tiles, swapped operands."""
    out: dict[str, dict[str, Any]] = {}
    rows = (16, 32, 64) if m <= 16 else (64, 128)
    for bm in rows:
        for bn in (32, 64, 128):
            for split in (1, 2, 4):
                out[f"{bm}x{bn} split_k={split}"] = {"BM": bm, "BN": bn, "split_k": split}
            out[f"{bm}x{bn} cluster=2"] = {"BM": bm, "BN": bn, "split_k": 1, "cluster": 2}
    # Streams fetched ahead; rings of which two fit an SM let the next kernel's prologue run beside the last.
    for bk, stages, counts in (
        (256, None, (0, 2, 3, 4)),
        (256, 2, (2, 3)),
        (128, None, (0, 4, 5, 6)),
        (128, 5, (0, 4, 5, 6)),
        (128, 4, (4, 5, 6)),
    ):
        for count in counts:
            ring = {} if stages is None else {"num_stages": stages}
            name = f"BK={bk} num_stages={stages or 'max'} prefetch={count}"
            out[name] = {"BK": bk, "prefetch": count, **ring}
    return out


def ranked_plans(args: tuple[Any, ...], grid: Any, top: int) -> dict[str, dict[str, Any]]:
    """The planner's best plans as launch options, with the tile."""
    from tiledsl.lowering import device_graph
    from tiledsl.runtime.signature import signature
    from tiledsl.ws.select import choose

    call = matmul._bind(args, {})
    sig, _ = signature(call.runtime)
    request = matmul._request(call, sig, grid, call.constants)
    ranking = choose(request, device_graph)
    assert ranking.lower is not None
    out: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for item in ranking.items:
        constants = ranking.lower(item.tile).constants
        chosen = {k: int(constants[k]) for k in call.constants}
        options = {**chosen, **options_of(item.plan)}
        if (key := json.dumps(options, sort_keys=True)) in seen:
            continue
        seen.add(key)
        out[f"rank {len(out) + 1} ({item.cost.us:.1f} us expected)"] = options
        if len(out) == top:
            break
    return out


def options_of(plan: Any) -> dict[str, Any]:
    """Launch options that ask for a plan."""
    out = {
        "num_stages": plan.num_stages,
        "mma_depth": plan.mma_depth,
        "num_consumers": plan.num_consumers,
        "ping_pong": plan.ping_pong,
        "persistent": plan.persistent,
        "split_k": plan.split_k,
        "raster_group": plan.raster_group,
        "swap_operands": plan.swapped,
    }
    return out if plan.split_k > 1 else {**out, "cluster": plan.cluster_size}


def describe(kernel: Any) -> str:
    """A compiled kernel's plan in a few words."""
    plan, tile = kernel.plan, "x".join(str(kernel.constants[n]) for n in ("BM", "BN", "BK"))
    if not hasattr(plan, "num_stages"):
        return f"{tile} single role"
    kind = f"{'pp' if plan.ping_pong else 'co'}{plan.num_consumers}"
    words = [tile, kind, f"D{plan.num_stages}", f"P{plan.mma_depth}"]
    if plan.split_k > 1:
        words.append(f"split{plan.split_k}")
    elif plan.cluster_size > 1:
        words.append(f"c{plan.cluster_size}@{plan.cluster_axis}")
    words.append(f"g{plan.raster_group}" if plan.persistent else "oneshot")
    words += [f"F{plan.prefetch}"] if plan.prefetch else []
    words += [w for w, on in (("deferred", plan.deferred), ("swapped", plan.swapped)) if on]
    return " ".join(words)


# ---------------------------------------------------------------------- hand-written kernels
def reference_configs(folder: str, shape: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    """Configurations of the hand-written kernels that win at a shape, by name."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import configs  # pyright: ignore[reportMissingImports]
    from kern import cfg  # pyright: ignore[reportMissingImports]

    pp, co = configs.PPC, configs.co
    three = {"NWG": 3, "REG_P": 32, "REG_C": 160, "BM": 192, "BN": 176, "STAGES": 4, "NBUF": 1}
    co3 = {**three, "CN": 2, "EPI": 4, "GROUP": 12}
    rows = {"src": "splitk", "BM": 64, "NWG": 1, "A_ROWS": 16, "BN": 64, "HINT": 1}
    table = {
        (4096, 4096, 4096): {"CO256 deferred P1": {**co, "EPI": 4, "P": 1, "GROUP": 16}},
        (2048, 2048, 2048): {"CO256 EPI2 P1": {**co, "EPI": 2, "P": 1, "GROUP": 16}},
        (4096, 14336, 4096): {"PP176": {**pp, "BN": 176, "CM": 2, "GROUP": 8}},
        (4104, 4104, 4104): {"CO3 192x176": {**co3, "L2P": 2}},
        (4160, 4160, 4160): {"CO3 192x176": co3},
        (128, 4096, 4096): {
            "split-K 128x64": {
                "src": "splitk", "BM": 128, "BN": 64, "SPLIT": 2, "STAGES": 8, "HINT": 1
            }
        },
        (16, 8192, 8192): {"split-K 64x64": {**rows, "SPLIT": 2, "STAGES": 10}},
    }  # fmt: skip
    default = {"PP192": {**pp, "NBUF": 1, "CM": 2, "GROUP": 4}}
    return {name: cfg(dt=dtype, **c) for name, c in table.get(shape, default).items()}


def reference_launch(config: Any, data: Data) -> Callable[[int], None]:
    """A launcher of a hand-written kernel over the sets of inputs."""
    import kern  # pyright: ignore[reportMissingImports]

    if not os.access(kern.HERE, os.W_OK):
        kern.CACHE = "/tmp/tiledsl_reference_cubins"
    kernel = kern.Kernel(config)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    sets = zip(data.a, data.b, data.c, strict=True)
    bound = [kernel.bind(a, b.t(), c, sms, config) for a, b, c in sets]
    return lambda i: bound[i](torch.cuda.current_stream().cuda_stream)


# ---------------------------------------------------------------------- measuring
class Data:
    """Inputs, outputs and the fp64 product of one shape and dtype."""

    def __init__(self, shape: tuple[int, int, int], dtype: str, order: str) -> None:
        m, n, k = shape
        self.shape, self.dtype = shape, dtype
        size = 2 * (m * k + k * n + m * n)
        count = max(2, min(16, -(-SET_BYTES // size)))
        self.a = [self.input(m, k, order[0] == "T") for _ in range(count)]
        self.b = [self.input(k, n, order[1] == "T") for _ in range(count)]
        self.c = [self.empty(m, n) for _ in range(count)]
        self.z = [self.empty(m, n) for _ in range(count)]
        self.want = self.a[0].double() @ self.b[0].double()
        self.norm = self.want.norm()

    def empty(self, rows: int, cols: int) -> torch.Tensor:
        return torch.empty(rows, cols, device="cuda", dtype=DTYPES[self.dtype])

    def input(self, rows: int, cols: int, transposed: bool) -> torch.Tensor:
        base = self.empty(cols, rows) if transposed else self.empty(rows, cols)
        base.normal_()
        return base.t() if transposed else base

    def cublas(self, i: int) -> None:
        torch.matmul(self.a[i], self.b[i], out=self.z[i])

    def error(self, launch: Callable[[int], None], out: list[torch.Tensor]) -> float:
        """Relative error of a contender on the first set, output poisoned before."""
        out[0].fill_(float("nan"))
        launch(0)
        torch.cuda.synchronize()
        return ((out[0].double() - self.want).norm() / self.norm).item()


@dataclass
class Contender:
    """Something to time: how it launches, and what is known of it."""

    name: str
    launch: Callable[[int], None]
    facts: dict[str, Any]


class Shape:
    """All contenders of one shape and dtype, checked and timed."""

    def __init__(self, job: dict[str, Any], options: argparse.Namespace, say: Callable[..., None]):
        self.shape = tuple(job["shape"])
        self.dtype = job["dtype"]
        self.bad = set(job["bad"])
        self.options = options
        self.say = say
        m, n, _ = self.shape
        self.grid = lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]))
        self.data = Data(self.shape, self.dtype, options.order)

    def ours(self, name: str, forced: dict[str, Any]) -> Contender | None:
        """A launch of our kernel under some options; None where they are refused or wrong."""
        if name in self.bad:
            return None
        d = self.data
        self.say(at=name)
        try:
            kernel = matmul.compile(d.a[0], d.b[0], d.c[0], grid=self.grid, **forced)
        except Exception as error:
            kind = "" if isinstance(error, tiledsl.TileError) else f"{type(error).__name__}: "
            self.say(row={"name": name, "refused": (kind + str(error)).splitlines()[0][:200]})
            return None
        facts = {
            "plan": describe(kernel),
            "python_ms": kernel.python_seconds * 1e3,
            "expected": kernel.cost.us if kernel.cost else None,
            "notes": [n for n in kernel.notes if "given up" in n],
        }
        bound = matmul[self.grid]

        def launch(i: int) -> None:
            bound(d.a[i], d.b[i], d.c[i], **forced)

        return self.checked(Contender(name, launch, facts), d.c)

    def reference(self) -> list[Contender]:
        if not self.options.reference or self.options.order != "NT":
            return []
        found: list[Contender | None] = []
        configs = reference_configs(self.options.reference, self.shape, self.dtype)
        for name, config in configs.items():
            full = f"reference {name}"
            if full in self.bad:
                continue
            self.say(at=full)
            launch = reference_launch(config, self.data)
            found.append(self.checked(Contender(full, launch, {}), self.data.c))
        return [c for c in found if c is not None]

    def checked(self, contender: Contender, out: list[torch.Tensor]) -> Contender | None:
        """The contender if its result is right."""
        error = self.data.error(contender.launch, out)
        contender.facts["error"] = error
        if error <= LIMITS[self.dtype]:
            return contender
        self.say(row={"name": contender.name, "wrong": error, **contender.facts})
        return None

    def contenders(self) -> list[Contender]:
        found = [self.ours("default", {})]
        if self.options.sweep:
            d = self.data
            small = self.shape[0] <= 128
            plans = skinny_plans(self.shape[0]) if small else large_plans()
            try:
                plans |= ranked_plans((d.a[0], d.b[0], d.c[0]), self.grid, self.options.top)
            except (AttributeError, TypeError) as error:
                self.say(row={"name": "ranked plans", "refused": f"planner changed: {error}"})
            seen = {found[0].facts["plan"]} if found[0] else set()
            for name, forced in plans.items():
                made = self.ours(name, forced)
                if made is not None and made.facts["plan"] not in seen:
                    seen.add(made.facts["plan"])
                    found.append(made)
        cublas = Contender("cuBLAS", self.data.cublas, {})
        cublas.facts["error"] = self.data.error(self.data.cublas, self.data.z)
        return [c for c in found if c is not None] + self.reference() + [cublas]

    def run(self) -> None:
        """Times all contenders in turn and says the medians.

        The best of many noisy times is too good: the fastest of a first race run again, and only
        those times count.
        """
        contenders = self.contenders()
        self.say(at="timing")
        first = capture(self.data.cublas, len(self.data.a), len(self.data.a))
        start, end = replay(first)
        torch.cuda.synchronize()
        estimate = start.elapsed_time(end) / len(self.data.a)
        sets = len(self.data.a)
        n = max(4, min(800, int(self.options.block_ms / estimate)))
        n = -(-n // sets) * sets
        graphs = []
        for c in contenders:
            self.say(at=c.name)
            graphs.append(capture(c.launch, n, sets))
        self.say(at="timing")
        if len(graphs) > FINALISTS:
            first = [statistics.median(t) for t in timed(graphs, n, 5)]
            best = sorted(range(len(graphs)), key=lambda i: first[i])[:FINALISTS]
            kept = [
                i
                for i, c in enumerate(contenders)
                if i in best or "plan" not in c.facts or c.name == "default"
            ]
            for i, c in enumerate(contenders):
                if i not in kept:
                    self.say(row={"name": c.name, "first_us": first[i], **c.facts})
            contenders, graphs = [contenders[i] for i in kept], [graphs[i] for i in kept]
        times = timed(graphs, n, self.options.rounds)
        for c, t in zip(contenders, times, strict=True):
            middle = statistics.median(t)
            spread = (max(t) - min(t)) / middle
            self.say(row={"name": c.name, "us": middle, "spread": spread, **c.facts})


def work(options: argparse.Namespace) -> None:
    """The worker."""
    torch.backends.cuda.matmul.allow_tf32 = False
    serve(lambda job, say: Shape(job, options, say).run())


# ---------------------------------------------------------------------- the table
class Parent(harness.Parent):
    """Drives workers of this script."""

    script = Path(__file__).resolve()
    baseline = "cuBLAS"


def ratio_of(rows: list[dict[str, Any]], name: str, to: str) -> float | None:
    """Time of contender `to` over that of contender `name`."""
    times = {r["name"]: r["us"] for r in rows if "us" in r}
    return times[to] / times[name] if name in times and to in times else None


def table_row(shape: tuple[int, int, int], dtype: str, rows: list[dict[str, Any]]) -> str:
    """The line of one shape."""
    label = f"{'x'.join(map(str, shape)):18} {dtype}"
    found = {r["name"]: r for r in rows}
    ours, theirs = found.get("default", {}), found.get("cuBLAS", {})
    if "us" not in ours or "us" not in theirs:
        why = ours.get("refused") or (
            f"error {ours['wrong']:.1e}" if "wrong" in ours else "no time"
        )
        return f"{label}  FAILED: {why}"
    flops = 2e-6 * math.prod(shape)
    spread = max(ours["spread"], theirs["spread"]) * 100
    line = (
        f"{label}  {ours['plan']:40} {ours['us']:8.1f} {flops / ours['us']:6.0f}"
        f" {theirs['us']:8.1f} {flops / theirs['us']:6.0f}  {theirs['us'] / ours['us']:5.3f}"
    )
    hand = [r for r in rows if r["name"].startswith("reference") and "us" in r]
    if hand:
        best = min(hand, key=lambda r: r["us"])
        line += f"  {best['us'] / ours['us']:5.3f}"
    return f"{line}  (spread {spread:.0f} %, python {ours['python_ms']:.0f} ms)"


def print_sweep(rows: list[dict[str, Any]], show: int) -> None:
    """The plans of a shape, fastest first, and how the default compares with the best of ours."""
    timed = sorted((r for r in rows if "us" in r), key=lambda r: r["us"])
    base = next((r["us"] for r in timed if r["name"] == "cuBLAS"), math.nan)
    for r in timed[:show]:
        guess = f"expected {r['expected']:8.1f}" if r.get("expected") else " " * 17
        name = r["name"]
        print(f"    {base / r['us']:5.3f} {r['us']:8.1f} us {guess}  {r.get('plan', ''):42} {name}")
    ours = [r for r in timed if "plan" in r]
    default = next((r for r in ours if r["name"] == "default"), None)
    if default:
        print(f"    default/best: {ours[0]['us'] / default['us']:.3f} ({ours[0]['plan']})")


def print_problems(rows: list[dict[str, Any]], *, refusals: bool) -> None:
    """Wrong results, hangs, plans that NVRTC or the planner turned down."""
    for r in rows:
        if "wrong" in r:
            print(f"    WRONG {r['name']}: error {r['wrong']:.1e} ({r.get('plan', '')})")
        if "refused" in r and (refusals or r["name"] == "default" or "hung" in r["refused"]):
            print(f"    {r['name']}: {r['refused']}")
        for note in r.get("notes", []) if r["name"] == "default" else []:
            print(f"    note: {note}")


def print_bars(results: dict[str, dict[tuple[int, int, int], list[dict[str, Any]]]]) -> None:
    """Geometric means and worst shapes against what must be reached."""
    for dtype, by_shape in results.items():
        for group, (shapes, mean, floor) in BARS.items():
            found = {s: ratio_of(by_shape[s], "default", "cuBLAS") for s in shapes if s in by_shape}
            ratios = {s: r for s, r in found.items() if r is not None}
            if not ratios:
                continue
            geomean = statistics.geometric_mean(ratios.values())
            worst = min(ratios, key=lambda s: ratios[s])
            good = geomean >= mean and ratios[worst] >= floor and len(ratios) == len(found)
            print(
                f"{dtype} {group:9} geomean {geomean:.3f} (bar {mean:.2f}), worst {ratios[worst]:.3f}"
                f" at {'x'.join(map(str, worst))} (floor {floor:.2f}): {'ok' if good else 'MISSED'}"
            )
        hand = [
            row["us"] / next(x["us"] for x in rows if x["name"] == "default")
            for rows in by_shape.values()
            for row in rows
            if row["name"].startswith("reference") and "us" in row
            and any(x["name"] == "default" and "us" in x for x in rows)
        ]  # fmt: skip
        if hand:
            print(
                f"{dtype} to the hand-written kernels: geomean {statistics.geometric_mean(hand):.3f},"
                f" worst {min(hand):.3f} (floor 0.98)"
            )
        choices = []
        for rows in by_shape.values():
            ours = [r for r in rows if "us" in r and "plan" in r]
            default = [r["us"] for r in ours if r["name"] == "default"]
            if default and len(ours) > 1:
                choices.append(min(r["us"] for r in ours) / default[0])
        if choices:
            print(f"{dtype} default/best of the sweep: worst {min(choices):.3f} (floor 0.97)")


def parse_shape(text: str) -> tuple[int, int, int]:
    """`8192x8192x512`, or `4096` for a cube."""
    parts = [int(x) for x in text.lower().split("x")]
    if len(parts) == 1:
        parts *= 3
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"expected MxNxK, got {text}")
    return parts[0], parts[1], parts[2]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    out.add_argument("--shapes", nargs="*", type=parse_shape, default=SERIES + SINGLE + SKINNY)
    out.add_argument("--dtypes", nargs="*", choices=list(DTYPES), default=list(DTYPES))
    out.add_argument("--order", choices=("NN", "NT", "TN", "TT"), default="NT")
    out.add_argument("--sweep", action="store_true", help="also other plans; default/best")
    out.add_argument("--top", type=int, default=8, help="plans of the planner in a sweep")
    out.add_argument("--show", type=int, default=8, help="plans to print in a sweep")
    out.add_argument("--reference", default="", metavar="DIR", help="the hand-written kernels")
    out.add_argument("--budget", type=float, default=560, help="seconds for everything")
    out.add_argument("--timeout", type=float, default=20, help="seconds without progress: a hang")
    out.add_argument("--rounds", type=int, default=10)
    out.add_argument("--block-ms", type=float, default=10)
    out.add_argument("--json", default="", help="file for all rows ($OUT/bench_matmul.json)")
    return out


def main() -> int:
    """Prints the table."""
    options = parser().parse_args()
    if options.reference:
        options.reference = str(Path(options.reference).resolve())
    if options.worker:
        work(options)
    if not torch.cuda.is_available():
        print("bench_matmul: torch sees no CUDA device, nothing to time")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, order {options.order}")
    print(f"{'MxNxK':18} {'type':4}  {'plan':40} {'us':>8} {'TF':>6} {'cuBLAS':>8} {'TF':>6}  ratio"
          + ("  /hand" if options.reference else ""))  # fmt: skip
    start = time.monotonic()
    parent = Parent(options)
    results: dict[str, dict[tuple[int, int, int], list[dict[str, Any]]]] = {}
    for dtype in options.dtypes:
        for shape in options.shapes:
            if time.monotonic() > parent.end:
                print(f"{'x'.join(map(str, shape)):18} {dtype}  not run: the budget ended")
                continue
            rows = parent.job(shape, dtype)
            results.setdefault(dtype, {})[shape] = rows
            print(table_row(shape, dtype, rows), flush=True)
            if options.sweep:
                print_sweep(rows, options.show)
            print_problems(rows, refusals=options.sweep)
    parent.kill()
    print_bars(results)
    print(f"{time.monotonic() - start:.0f} s")
    target = options.json
    if not target and os.environ.get("OUT"):
        target = os.path.join(os.environ["OUT"], "bench_matmul.json")
    if target:
        flat = [
            {"dtype": d, "shape": s, **r}
            for d, x in results.items()
            for s, v in x.items()
            for r in v
        ]
        Path(target).write_text(json.dumps(flat, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
