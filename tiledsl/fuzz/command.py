"""The command `python -m tiledsl fuzz`: runs, prints what it finds and a line of counts."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import numpy as np

from tiledsl.fuzz.case import Case
from tiledsl.fuzz.device import to_device
from tiledsl.fuzz.generate import FAMILIES
from tiledsl.fuzz.generate import generate
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels
from tiledsl.fuzz.outcome import Outcome
from tiledsl.fuzz.pool import Config
from tiledsl.fuzz.pool import Worker
from tiledsl.fuzz.pool import fails_like
from tiledsl.fuzz.pool import run_all
from tiledsl.fuzz.pool import signature
from tiledsl.fuzz.replay import save
from tiledsl.fuzz.shrink import shrink

LEVELS = ("interpreter", "simulation", "nvrtc", "emulation", "device")
SHOWN = 12
"""Reasons of each kind in the closing table."""
REPEATED = 3
"""Findings of a kind that are printed."""
SHRUNK = 8
"""Different findings that are made smaller."""
NO_END = 1e9
CASE_SECONDS = 600.0
"""What a case may take besides its launches on a device."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("--seed", type=int, default=0, help="of the kernels (default 0)")
    parser.add_argument("--count", type=int, default=200, help="kernels (default 200)")
    parser.add_argument("--start", type=int, default=0, help="number of the first kernel")
    parser.add_argument("--budget", type=float, help="stop after so many seconds")
    parser.add_argument(
        "--gpu", action="store_true", help="run on the device instead of simulating"
    )
    parser.add_argument("--out", type=Path, default=Path("out/fuzz"), help="folder of reproducers")
    families = ", ".join(FAMILIES)
    parser.add_argument("--only", default="", metavar="FEATURE",
                        help=f"only kernels of a family ({families}), with a launch option, or "
                        "with this text")  # fmt: skip
    parser.add_argument("--workers", type=int, help="processes (default: all cores but two)")
    parser.add_argument("--plans", type=int, default=2, help="plans of each kernel (default 2)")
    parser.add_argument("--nvrtc", type=float, default=0.02, help="share compiled (default 0.02)")
    parser.add_argument("--emulation", type=float, default=0.02,
                        help="share of kernels run as emitted text (default 0.02)")  # fmt: skip
    parser.add_argument("--shrink", type=float, default=60.0,
                        help="seconds to make findings smaller, together (default 60)")  # fmt: skip


@dataclass
class Tally:
    """Counts over all cases."""

    kernels: int = 0
    specialised: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    declined: Counter[str] = field(default_factory=Counter[str])
    unproved: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    families: Counter[str] = field(default_factory=Counter[str])
    compared: Counter[str] = field(default_factory=Counter[str])
    same_bits: int = 0
    vague: int = 0
    spilled: int = 0
    serialised: int = 0
    stayed: int = 0
    walked: int = 0
    seen: Counter[str] = field(default_factory=Counter[str])
    findings: list[tuple[int, Finding]] = field(default_factory=list[tuple[int, Finding]])

    def add(self, number: int, made: Outcome) -> None:
        """Counts a case, and prints what is wrong with it."""
        self.kernels += 1
        if self.kernels % 100 == 0:
            print(f"{self.kernels} kernels, {len(self.findings)} findings", flush=True)
        self.specialised += made.specialised
        self.families[made.family] += 1
        for counter, texts in (
            (self.refused, [made.refused]),
            (self.declined, [made.declined]),
            (self.unproved, made.unproved),
            (self.reasons, made.reasons),
        ):
            counter.update(gist(t) for t in texts if t)
        self.compared.update(made.compared)
        self.same_bits += made.same_bits
        self.vague += made.vague
        self.spilled += made.spilled
        self.serialised += made.serialised
        self.stayed += made.stayed
        self.walked += made.walked
        for finding in made.findings:
            self.findings.append((number, finding))
            key = signature(finding.kind, finding.text)
            self.seen[key] += 1
            if self.seen[key] <= REPEATED:
                print(f"kernel {number} ({made.family}) {finding.kind}: {finding.text}", flush=True)

    def table(self) -> list[str]:
        """Lines of reasons."""
        out: list[str] = []
        for title, counter in (
            ("refused", self.refused),
            ("launch options that cannot be honoured", self.declined),
            ("plans that were not proved, and given up", self.unproved),
            ("run in a single role", self.reasons),
        ):
            if counter:
                out.append(f"{title}: {counter.total()}")
                out += [f"  {n:5} {text}" for text, n in counter.most_common(SHOWN)]
        return out

    def closing(self, seed: int, seconds: float) -> str:
        """The closing line."""
        counts = ", ".join(f"{n} {self.compared[n]}" for n in LEVELS if self.compared[n])
        kinds = Counter(f.kind.partition(":")[0] for _, f in self.findings)
        slow, crashes = kinds["compile"], kinds["crash"]
        wrong = kinds.total() - slow - crashes
        return (
            f"fuzz seed {seed}: {self.kernels} kernels in {seconds:.0f} s, {self.specialised} "
            f"specialised, {self.stayed} stayed, {self.refused.total()} refused, "
            f"{self.declined.total()} with options declined, {self.unproved.total()} plans not "
            f"proved; compared: {counts or 'nothing'} "
            f"({self.same_bits} simulations gave the interpreter's bits, {self.spilled} spilled, "
            f"{self.serialised} serialised, {self.vague} without a useful bound, {self.walked} "
            f"walked over tiles); {wrong} mismatches, {slow} slow compiles, {crashes} crashes"
        )


def gist(text: str) -> str:
    """A reason without its numbers and names, to count by."""
    first = text.splitlines()[0]
    if first.startswith("launch options"):
        first = first.partition(": ")[2]
    words = ["#" if any(c.isdigit() for c in w) else w for w in first.split()]
    return " ".join(words)[:110]


def run(options: argparse.Namespace) -> int:
    """Runs the command; 1 when something is wrong."""
    begin = time.monotonic()
    if options.gpu and (reason := missing_device()):
        print(f"fuzz --gpu: {reason}")
        return 2
    levels = Levels(
        simulation=not options.gpu,
        plans=options.plans,
        emulation=options.emulation,
        nvrtc=options.nvrtc,
        device=options.gpu,
    )
    config = Config(options.seed, options.only, levels, CASE_SECONDS)
    workers = options.workers or max(1, (os.cpu_count() or 1) - 2)
    deadline = begin + (options.budget or NO_END)
    tally = Tally()
    numbers = range(options.start, options.start + options.count)
    run_all(config, numbers, workers, deadline, tally.add)
    shrink_all(config, tally, options)
    print("\n".join(tally.table()))
    print(tally.closing(options.seed, time.monotonic() - begin))
    return 1 if tally.findings else 0


def missing_device() -> str:
    """Why nothing can run on a device; empty when it can."""
    try:
        to_device(np.zeros(1, np.float32))
    except (RuntimeError, AssertionError) as error:
        return f"no device: {str(error).splitlines()[0]}"
    return ""


def shrink_all(config: Config, tally: Tally, options: argparse.Namespace) -> None:
    """Writes a reproducer for every kind of finding, as small as time allows."""
    seen: dict[str, tuple[int, Finding]] = {}
    for number, finding in tally.findings:
        seen.setdefault(signature(finding.kind, finding.text), (number, finding))
    worker = Worker(config)
    for number, finding in list(seen.values())[:SHRUNK]:
        case: Case = generate(config.seed, number, config.only)
        try:
            fails = fails_like(worker, finding.kind, finding.text)
            small = shrink(case, fails, options.shrink / min(len(seen), SHRUNK))
        finally:
            worker.stop()
        print(
            f"kernel {number}, {finding.kind}: {save(small, finding, options.out, gpu=options.gpu)}"
        )
