"""Reproducers: a failing case as a Python file that runs it again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from dataclasses import replace
from pathlib import Path

from tiledsl.fuzz.case import Case
from tiledsl.fuzz.levels import run_case
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels

EVERYTHING = Levels(plans=6, emulation=1.0, nvrtc=1.0)


def save(case: Case, finding: Finding, folder: Path, *, gpu: bool) -> Path:
    """Writes a reproducer; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"    {f.name}={getattr(case, f.name)!r}," for f in fields(case) if f.name != "source"]
    comment = "\n".join(f"# {line}" for line in f"{finding.kind}: {finding.text}".splitlines())
    flag = "" if not gpu else ", gpu=True"
    text = (
        f'"""A kernel that fails: run this file."""\n\n{comment}\n'
        "from tiledsl.fuzz.case import Argument\nfrom tiledsl.fuzz.case import Case\n"
        "from tiledsl.fuzz.replay import replay\n\n"
        f'SOURCE = """\\\n{case.source}"""\n'
        "CASE = Case(\n    source=SOURCE,\n" + "\n".join(parts) + "\n)\n\n"
        f'if __name__ == "__main__":\n    raise SystemExit(replay(CASE{flag}))\n'
    )
    path = folder / f"fuzz_{case.name.replace('-', '_')}.py"
    path.write_text(text, encoding="utf-8")
    return path


def replay(case: Case, *, gpu: bool = False, arguments: Sequence[str] | None = None) -> int:
    """Runs a case at every level and prints what happens; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description="Runs one fuzzed kernel again.")
    parser.add_argument("--report", action="store_true", help="also print the compiler's report")
    parser.add_argument("--cuda", action="store_true", help="also print the CUDA text")
    parser.add_argument("--gpu", action="store_true", default=gpu, help="also run on the device")
    given = parser.parse_args(arguments)
    print(case.source)
    show(case, report=given.report, cuda=given.cuda)
    out = run_case(case, replace(EVERYTHING, device=given.gpu))
    for finding in out.findings:
        print(f"{finding.kind}: {finding.text}")
    for line in out.unproved:
        print(f"not proved: {line}")
    for what, text in (("refused", out.refused), ("options declined", out.declined)):
        if text:
            print(f"{what}: {text}")
    print(f"compared {out.compared or 'nothing'}, {len(out.findings)} findings")
    return 1 if out.findings else 0


def show(case: Case, *, report: bool, cuda: bool) -> None:
    """Prints what the compiler makes of a case."""
    if not (report or cuda):
        return
    from tiledsl.fuzz.levels import Runner

    runner = Runner(case, EVERYTHING)
    for text in runner.texts(report=report, cuda=cuda):
        print(text)
