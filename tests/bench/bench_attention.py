"""Times the attention example against torch's SDPA with the cuDNN backend, and what else is there.

    python3 tests/bench/bench_attention.py [--rows NAME ...] [--reference DIR] [--others]

Method as in bench_matmul: random normal inputs in rotating sets, each contender a CUDA graph of n
launches, blocks of all contenders in turn, medians; each is checked against fp64 on two heads before
it is timed. Only ratios within one run count. FlashAttention-4 is timed where it is installed.
"""

from __future__ import annotations

import argparse
import json
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
from torch.nn.attention import SDPBackend  # noqa: E402
from torch.nn.attention import sdpa_kernel  # noqa: E402

import tiledsl  # noqa: E402
from examples import attention as example  # noqa: E402
from tests.bench import harness  # noqa: E402
from tests.bench.harness import capture  # noqa: E402
from tests.bench.harness import serve  # noqa: E402
from tests.bench.harness import timed  # noqa: E402
from tests.unit.examples.attention_reference import attention_fp64  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LIMITS = {"bf16": 4e-3, "fp16": 1e-3}
SET_BYTES = 200_000_000
OURS, CUDNN, FA4, HAND = "ours", "cuDNN", "FA4", "hand-written"


@dataclass(frozen=True)
class Row:
    """One line of the table. window: 0 for none. packed: sequences of a packed batch, else 0."""

    B: int
    H: int
    L: int
    D: int
    causal: bool = False
    HK: int = 0
    DV: int = 0
    dtype: str = "bf16"
    window: int = 0
    packed: int = 0

    @property
    def name(self) -> str:
        parts = [f"D{self.D}", f"L{self.L}", "causal" if self.causal else "full"]
        if self.DV:
            parts[0] += f"/{self.DV}"
        if self.HK:
            parts.append(f"kv{self.HK}")
        if self.window:
            parts.append(f"w{self.window}")
        if self.packed:
            parts.append(f"packed{self.packed}")
        return "-".join([*parts, *([self.dtype] if self.dtype != "bf16" else [])])

    @property
    def flops(self) -> float:
        """Multiplications and additions of both products; half of them where causal."""
        keys = self.L / 2 if self.causal else self.L
        if self.window:
            keys = min(keys, self.window)
        rows = self.B * self.H * self.L
        if self.packed:
            rows, keys = self.H * self.L, keys / self.packed
        return 2 * rows * keys * (self.D + (self.DV or self.D))


HEAD128 = [Row(4, 16, n, 128, c) for c in (False, True) for n in (1024, 2048, 4096, 8192, 16384)]
HEAD64 = [Row(4, 32, n, 64, c) for c in (False, True) for n in (4096, 16384)]
OTHERS = [
    *[Row(4, 16, 4096, d, c) for d in (96, 256) for c in (False, True)],
    *[Row(4, 16, 4096, 192, c, DV=128) for c in (False, True)],
    Row(4, 16, 4096, 128, dtype="fp16"),
    Row(4, 16, 4096, 128, causal=True, dtype="fp16"),
    Row(4, 32, 4096, 128, causal=True, HK=8),
    Row(4, 16, 8192, 128, causal=True, window=1024),
    Row(4, 16, 5000, 128),
    Row(4, 16, 5000, 128, causal=True),
    Row(1, 16, 16384, 128, causal=True, packed=8),
]
# Group: rows, geometric mean to reach, floor for each row (ratios to cuDNN, to the hand-written).
BARS = {
    "to cuDNN, D = 128 and 64": (HEAD128 + HEAD64, CUDNN, 1.05, 1.05),
    "to FlashAttention-4": (HEAD128 + HEAD64, FA4, 1.05, 0.97),
    "to the hand-written kernels": (HEAD128 + HEAD64, HAND, 0.98, 0.98),
    "to cuDNN, other forms": (OTHERS, CUDNN, 1.0, 1.0),
}
ROWS = {r.name: r for r in HEAD128 + HEAD64 + OTHERS}


# ---------------------------------------------------------------------- contenders
class Data:
    """Rotating sets of inputs of one row, and the fp64 result of two heads of the first set."""

    def __init__(self, row: Row) -> None:
        self.row = row
        HK, DV = row.HK or row.H, row.DV or row.D
        elements = row.L * row.B * (row.H * (row.D + DV) + HK * (row.D + DV))
        count = max(2, min(8, -(-SET_BYTES // (2 * elements))))
        shapes = ((row.H, row.D), (HK, row.D), (HK, DV))
        self.sets = [[self.normal(h, d) for h, d in shapes] for _ in range(count)]
        step = row.L // row.packed if row.packed else 0
        self.starts = torch.arange(0, row.L + 1, step or row.L, device="cuda", dtype=torch.int32)
        q, k, v = self.sets[0]
        heads = row.H // HK
        part = (q[:1, :heads][:, [0, -1]], k[:1, [0, 0]], v[:1, [0, 0]])
        self.rows = min(row.L, 2048)
        if step:
            part = tuple(x[:, :, :step] for x in part)
            self.rows = step
        part = (part[0][:, :, : self.rows], *part[1:])
        options = {"causal": row.causal, "window": row.window, "offset": 0}
        self.want, _ = attention_fp64(*part, **options)

    def normal(self, heads: int, dim: int) -> torch.Tensor:
        shape = (self.row.B, heads, self.row.L, dim)
        if self.row.packed:
            made = torch.randn(self.row.L, heads, dim, device="cuda", dtype=DTYPES[self.row.dtype])
            return made.transpose(0, 1)[None]
        return torch.randn(shape, device="cuda", dtype=DTYPES[self.row.dtype])

    def error(self, launch: Callable[[int], torch.Tensor]) -> float:
        """Relative error on the first rows of two heads that share the first keys."""
        torch.use_deterministic_algorithms(True, warn_only=True)  # new memory is NaN
        got = launch(0)
        torch.cuda.synchronize()
        torch.use_deterministic_algorithms(False)
        heads = self.row.H // (self.row.HK or self.row.H)
        part = got[:1, :heads][:, [0, -1], : self.rows].double()
        return ((part - self.want).norm() / self.want.norm()).item()


def ours(data: Data) -> Callable[[int], torch.Tensor]:
    row = data.row

    def launch(i: int) -> torch.Tensor:
        if not row.packed:
            return example.attention(*data.sets[i], causal=row.causal, window=row.window)[0]
        q, k, v = (x[0].transpose(0, 1) for x in data.sets[i])
        longest = row.L // row.packed
        o, _ = example.attention_varlen(
            q, k, v, data.starts, data.starts, longest, causal=row.causal
        )
        return o.transpose(0, 1)[None]

    return launch


def cudnn(data: Data) -> Callable[[int], torch.Tensor]:
    """SDPA with the cuDNN backend; a packed batch as the dense one of the same sequences."""
    row = data.row
    if row.window:
        raise NotImplementedError("SDPA has no window")

    def launch(i: int) -> torch.Tensor:
        q, k, v = data.sets[i]
        if row.packed:
            q, k, v = (x[0].unflatten(1, (row.packed, -1)).transpose(0, 1) for x in (q, k, v))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=row.causal, enable_gqa=bool(row.HK)
            )

    return launch


def fa4(data: Data) -> Callable[[int], torch.Tensor]:
    """FlashAttention-4's kernels; [B, L, H, D] contiguous copies of the inputs."""
    from flash_attn.cute import flash_attn_func  # pyright: ignore[reportMissingImports]

    row = data.row
    if row.packed:
        raise NotImplementedError("timed on dense batches only")
    sets = [[x.transpose(1, 2).contiguous() for x in s] for s in data.sets]
    window = (row.window - 1, 0) if row.window else (None, None)

    def launch(i: int) -> torch.Tensor:
        out = flash_attn_func(*sets[i], causal=row.causal, window_size=window)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return launch


def hand_written(data: Data, folder: str) -> Callable[[int], torch.Tensor]:
    """The hand-written kernel of the row, where there is one."""
    row = data.row
    if row.D not in (64, 128) or row.HK or row.DV or row.window or row.packed:
        raise NotImplementedError("no such kernel")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import run_attn  # pyright: ignore[reportMissingImports]
    from emit_target import T  # pyright: ignore[reportMissingImports]

    if not os.access(run_attn.HERE, os.W_OK):
        run_attn.CACHE = "/tmp/tiledsl_reference_cubins"
    shape = {"hd": 64, "nwg": 3, "creg": 160} if row.D == 64 else {}
    kernel = run_attn.Kernel(T(causal=row.causal, f16=row.dtype == "fp16", **shape))
    lse = torch.empty(row.B, row.H, row.L, device="cuda")
    ticket = torch.zeros(8, device="cuda", dtype=torch.int32)
    outs = [torch.empty_like(s[0]) for s in data.sets]
    plans = [kernel.plan(*s, o, lse, ticket) for s, o in zip(data.sets, outs, strict=True)]

    alive = (lse, ticket)  # The plans hold addresses only.

    def launch(i: int) -> torch.Tensor:
        assert alive
        kernel.launch(plans[i])
        return outs[i]

    return launch


# ---------------------------------------------------------------------- measuring
class Measurement:
    """All contenders of one row, checked and timed."""

    def __init__(self, job: dict[str, Any], options: argparse.Namespace, say: Callable[..., None]):
        self.row = ROWS[job["shape"]]
        self.bad = set(job["bad"])
        self.options = options
        self.say = say
        self.data = Data(self.row)

    def contenders(self) -> list[tuple[str, Callable[[int], torch.Tensor], dict[str, Any]]]:
        makers: dict[str, Callable[[Data], Callable[[int], torch.Tensor]]]
        makers = {OURS: ours, CUDNN: cudnn, FA4: fa4}
        if self.options.reference:
            makers[HAND] = lambda data: hand_written(data, self.options.reference)
        out: list[tuple[str, Callable[[int], torch.Tensor], dict[str, Any]]] = []
        for name, make in makers.items():
            if name in self.bad:
                continue
            self.say(at=name)
            try:
                launch = make(self.data)
                error = self.data.error(launch)
            except (ImportError, NotImplementedError, RuntimeError, tiledsl.TileError) as problem:
                if "CUDA error" in str(problem):
                    raise
                self.say(row={"name": name, "refused": str(problem).splitlines()[0][:160]})
                continue
            facts = {"error": error}
            if not error <= LIMITS[self.row.dtype]:
                self.say(row={"name": name, "wrong": error})
                continue
            out.append((name, launch, facts))
        return out

    def run(self) -> None:
        """Times all contenders in turn and says the medians."""
        contenders = self.contenders()
        self.say(at="timing")
        sets = len(self.data.sets)
        expected_ms = self.row.flops / 5e14 * 1e3
        n = max(1, round(self.options.block_ms / expected_ms / sets)) * sets
        graphs: list[torch.cuda.CUDAGraph] = []
        for name, launch, _ in contenders:
            self.say(at=name)
            graphs.append(capture(launch, n, sets))
        self.say(at="timing")
        times = timed(graphs, n, self.options.rounds)
        for (name, _, facts), t in zip(contenders, times, strict=True):
            middle = statistics.median(t)
            spread = (max(t) - min(t)) / middle
            self.say(row={"name": name, "us": middle, "spread": spread, **facts})


def work(options: argparse.Namespace) -> None:
    """The worker."""
    serve(lambda job, say: Measurement(job, options, say).run())


# ---------------------------------------------------------------------- the table
class Parent(harness.Parent):
    """Drives workers of this script."""

    script = Path(__file__).resolve()
    baseline = CUDNN


def table_row(row: Row, found: list[dict[str, Any]], names: list[str]) -> str:
    """The line of one row: our TFLOP/s, then the ratio of each other contender's time to ours."""
    by_name = {r["name"]: r for r in found}
    mine = by_name.get(OURS, {})
    label = f"{row.name:30} B{row.B} H{row.H:<3}"
    if "us" not in mine:
        why = mine.get("refused") or (f"wrong, error {mine['wrong']:.1e}" if mine else "no time")
        return f"{label} FAILED: {why}"
    line = f"{label} {mine['us']:9.1f} {row.flops / mine['us'] / 1e6:6.0f} {mine['error']:8.1e}"
    for name in names:
        other = by_name.get(name, {})
        ratio = f"{other['us'] / mine['us']:.3f}" if "us" in other else "-"
        line += f" {ratio:>12}"
    return f"{line}   (spread {100 * mine['spread']:.0f} %)"


def print_bars(results: dict[str, list[dict[str, Any]]]) -> None:
    """Geometric means and worst rows against what must be reached."""
    for group, (rows, name, mean, floor) in BARS.items():
        ratios: dict[str, float] = {}
        for row in rows:
            times = {r["name"]: r["us"] for r in results.get(row.name, []) if "us" in r}
            if OURS in times and name in times:
                ratios[row.name] = times[name] / times[OURS]
        if ratios:
            geomean = statistics.geometric_mean(ratios.values())
            worst = min(ratios, key=lambda r: ratios[r])
            good = geomean >= mean and ratios[worst] >= floor
            print(
                f"{group}: geomean {geomean:.3f} (bar {mean:.2f}), worst {ratios[worst]:.3f} at {worst}"
                f" (floor {floor:.2f}): {'ok' if good else 'MISSED'}"
            )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    out = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    out.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    out.add_argument("--rows", nargs="*", choices=list(ROWS), metavar="ROW", help="by name")
    out.add_argument("--others", action="store_true", help="also the rows beside D = 128 and 64")
    out.add_argument("--reference", default="", metavar="DIR", help="the hand-written kernels")
    out.add_argument("--budget", type=float, default=560, help="seconds for everything")
    out.add_argument("--timeout", type=float, default=40, help="seconds without progress: a hang")
    out.add_argument("--rounds", type=int, default=8)
    out.add_argument("--block-ms", type=float, default=10)
    out.add_argument("--json", default="", help="file for all rows ($OUT/bench_attention.json)")
    return out


def main() -> int:
    """Prints the table."""
    options = parser().parse_args()
    if options.reference:
        options.reference = str(Path(options.reference).resolve())
    if options.worker:
        work(options)
    if not torch.cuda.is_available():
        print("bench_attention: torch sees no CUDA device, nothing to time")
        return 0
    names = [CUDNN, FA4, *([HAND] if options.reference else [])]
    chosen = [r.name for r in HEAD128 + HEAD64 + (OTHERS if options.others else [])]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'row':39} {'us':>9} {'TF':>6} {'error':>8}" + "".join(f" {n:>12}" for n in names))
    parent = Parent(options)
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.rows or chosen:
        if time.monotonic() > parent.end:
            print(f"{name:39} not run: the budget ended")
            continue
        results[name] = found = parent.job(name, ROWS[name].dtype)
        print(table_row(ROWS[name], found, names), flush=True)
        for r in found:
            if "wrong" in r or ("refused" in r and r["name"] in (OURS, CUDNN, HAND)):
                print(f"    {r['name']}: {r.get('refused') or 'wrong: error ' + str(r['wrong'])}")
    parent.kill()
    print_bars(results)
    target = options.json or (
        os.environ.get("OUT", "") and f"{os.environ['OUT']}/bench_attention.json"
    )
    if target:
        Path(target).write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
