"""Runs compute-sanitizer's tools over the example kernels and prints a short table.

    scripts/sanitize.sh [memcheck synccheck racecheck initcheck] [--only TEXT] [--seconds 480]

By default memcheck and synccheck, which have to be clean; docs/verification.md says how to read the
others. Full logs go to $OUT/sanitize, or to a folder for temporary files. Exit: 0 where all is
clean, 1 where something was found, 2 where the sanitizer cannot run here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
PLACES = (
    "/usr/local/cuda/bin/compute-sanitizer",
    "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
    "/opt/nvidia/compute-sanitizer/compute-sanitizer",
)
SAYS = "========= "
NO_FINDING = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Warning")
MAX_LINES = 30


def find_sanitizer() -> str | None:
    """The sanitizer's program: COMPUTE_SANITIZER, the search path, or where toolkits put it."""
    given = os.environ.get("COMPUTE_SANITIZER") or shutil.which("compute-sanitizer")
    return given or next((p for p in PLACES if os.access(p, os.X_OK)), None)


@dataclass
class Log:
    """What became of the cases of one tool. outcomes: by case; said: the first findings of each."""

    tool: str
    outcomes: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    head: list[str] = field(default_factory=list)

    def finding(self, case: str, line: str) -> None:
        """A line of the sanitizer; those that are indented belong to the finding before."""
        text = line[len(SAYS) :].rstrip()
        if not text or text.startswith(NO_FINDING):
            return
        said = self.said.setdefault(case, [])
        if not text.startswith(" "):
            self.counts[case] += 1
        elif not said:
            return
        if len(said) < 3:
            said.append(text.strip())


class Job(threading.Thread):
    """Runs some of the cases; after a crash or a hang it goes on with the next one."""

    def __init__(self, log: Log, sanitizer: str, names: list[str], options: argparse.Namespace,
                 path: Path) -> None:  # fmt: skip
        super().__init__(daemon=True)
        self.log, self.sanitizer, self.options, self.path = log, sanitizer, options, path
        self.todo = list(names)
        self.heard = time.monotonic()

    def run(self) -> None:
        while self.todo and time.monotonic() < self.options.deadline:
            before = len(self.todo)
            self.one_process()
            if len(self.todo) == before:  # not even the first case was reached
                return

    def one_process(self) -> None:
        command = [
            self.sanitizer, "--tool", self.log.tool, "--print-limit", "20",
            "--target-processes", "all", sys.executable, "-m", "tests.gpu.sanitized", *self.todo,
        ]  # fmt: skip
        if self.log.tool == "memcheck":  # a process asks for much that is not there
            command[3:3] = ["--report-api-errors", "no"]
        self.heard = time.monotonic()
        process = subprocess.Popen(
            command, cwd=ROOT, text=True, errors="replace", start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        done = threading.Event()
        watch = threading.Thread(target=self.watch, args=(process, done), daemon=True)
        watch.start()
        case = self.read(process)
        done.set()
        code = process.wait()
        watch.join()
        if case:
            late = time.monotonic() >= self.options.deadline
            quiet = time.monotonic() - self.heard >= self.options.case_seconds
            self.log.outcomes[case] = (
                "not run: out of time" if late else "HANG" if quiet else f"CRASH, exit {code}"
            )
            self.todo.remove(case)

    def read(self, process: subprocess.Popen[str]) -> str:
        """Takes the output apart; returns the case that was under way at the end, if any."""
        case = ""
        assert process.stdout is not None
        with self.path.open("a", encoding="utf-8") as file:
            for line in process.stdout:
                file.write(line)
                if line.startswith("@start "):
                    case, self.heard = line[7:].strip(), time.monotonic()
                elif line.startswith("@end ") and case:
                    outcome = line[5 + len(case) :].strip()
                    self.log.outcomes[case] = outcome
                    self.todo.remove(case)
                    case, self.heard = "", time.monotonic()
                elif line.startswith(SAYS):
                    self.log.finding(case or "outside the cases", line)
                if len(self.log.head) < 8:
                    self.log.head.append(line.rstrip()[:150])
        return case

    def watch(self, process: subprocess.Popen[str], done: threading.Event) -> None:
        """Ends the process when a case, or everything, takes too long."""
        while not done.wait(0.5):
            now = time.monotonic()
            if now > self.options.deadline or now - self.heard > self.options.case_seconds:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return


def run_tool(tool: str, sanitizer: str, names: list[str], options: argparse.Namespace) -> Log:
    """All cases under one tool, shared out over some processes."""
    log = Log(tool)
    jobs = [
        Job(log, sanitizer, names[i :: options.jobs], options, options.logs / f"{tool}-{i}.txt")
        for i in range(min(options.jobs, len(names)))
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    return log


def table(log: Log, names: list[str], seconds: float) -> list[str]:
    """Lines for people: one per case that is not clean."""
    clean = [n for n in names if log.outcomes.get(n) == "done" and not log.counts[n]]
    lines = [f"{log.tool}: {len(clean)} of {len(names)} cases clean, {seconds:.0f} s"]
    for name in [*names, "outside the cases"]:
        outcome = log.outcomes.get(name, "not run" if name in names else "done")
        if outcome != "done" or log.counts[name]:
            lines.append(f"  {name}: {outcome}, {log.counts[name]} findings")
            lines += [f"      {text[:140]}" for text in log.said.get(name, [])]
    return lines


def main() -> int:
    """Prints at most MAX_LINES lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("tools", nargs="*", default=[])
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--seconds", type=float, default=480, help="for everything")
    parser.add_argument(
        "--case-seconds", type=float, default=120, help="for one case, and the start"
    )
    parser.add_argument("--jobs", type=int, default=max(1, min(4, (os.cpu_count() or 2) // 2)))
    options = parser.parse_args()
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is not installed: it comes with the CUDA toolkit, or set", end=" ")
        print("COMPUTE_SANITIZER")
        return 2
    from tests.gpu.sanitized import BY_NAME

    names = [n for n in BY_NAME if options.only in n]
    out = os.environ.get("OUT")
    options.logs = Path(out) / "sanitize" if out else Path(tempfile.mkdtemp(prefix="sanitize-"))
    options.logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TILEDSL_CACHE_DIR", tempfile.mkdtemp(prefix="sanitize-cache-"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    start = time.monotonic()
    options.deadline = start + options.seconds
    lines: list[str] = []
    bad = False
    for tool in options.tools or ["memcheck", "synccheck"]:
        at = time.monotonic()
        log = run_tool(tool, sanitizer, names, options)
        if not log.outcomes:
            print(f"{tool} does not run here; it says:", *log.head, sep="\n  ")
            return 2
        lines += table(log, names, time.monotonic() - at)
        bad |= any(log.outcomes.get(n) != "done" or log.counts[n] for n in names)
    room = MAX_LINES - 2
    print("\n".join(lines[:room]))
    if len(lines) > room:
        print(f"... and {len(lines) - room} more lines")
    print(f"logs: {options.logs}")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
