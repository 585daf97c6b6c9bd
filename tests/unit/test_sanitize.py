"""The script around compute-sanitizer, with a program that stands for it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.scripts import Done
from tests.scripts import Scripts

ROOT = Path(__file__).parents[2]

# Speaks as the sanitizer does of the cases that it is given: one is clean, one has a finding, one ends it.
STAND_IN = """#!{python}
import sys
names = sys.argv[sys.argv.index("tests.gpu.sanitized") + 1:]
print("========= COMPUTE-SANITIZER")
for name in names:
    print("@start", name)
    if name == "swapped" and "synccheck" not in sys.argv:
        print("========= Invalid __shared__ read of size 4 bytes")
        print("=========     at probe+0x10")
        print("========= ")
    if name == "split":
        sys.exit(9)
    print("@end", name, "done")
print("========= ERROR SUMMARY: 1 error")
"""


def sanitize(scripts: Scripts, tmp_path: Path, program: str, *arguments: str) -> Done:
    path = tmp_path / "compute-sanitizer"
    path.write_text(program)
    path.chmod(0o755)
    env = {"COMPUTE_SANITIZER": str(path), "OUT": str(tmp_path)}
    return scripts.run(ROOT / "scripts" / "sanitize.py", *arguments, env=env)


def test_findings_and_crashes_are_told_by_case(scripts: Scripts, tmp_path: Path) -> None:
    done = sanitize(
        scripts, tmp_path, STAND_IN.format(python=sys.executable), "--only", "s", "--jobs", "2"
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 30
    heads = [line for line in lines if "cases clean" in line]
    clean, total = (int(word) for word in heads[0].split() if word.isdigit()), len(heads)
    first, cases = (next(clean), next(clean))
    assert (total, first) == (2, cases - 2), lines
    at = lines.index("  swapped: done, 1 findings")
    assert lines[at + 1].strip() == "Invalid __shared__ read of size 4 bytes"
    assert "  split: CRASH, exit 9, 0 findings" in lines
    assert f"synccheck: {cases - 1} of {cases} cases clean" in heads[1]
    assert (tmp_path / "sanitize" / "memcheck-0.txt").exists()


def test_a_device_that_it_does_not_know(scripts: Scripts, tmp_path: Path) -> None:
    program = '#!/bin/sh\necho "========= Error: Device not supported"\nexit 1\n'
    done = sanitize(scripts, tmp_path, program, "memcheck", "--only", "swapped")
    assert done.returncode == 2
    assert "memcheck does not run here" in done.stdout
    assert "Device not supported" in done.stdout
