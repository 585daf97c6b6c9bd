"""Runs GPU tests in worker processes, so that a hung or crashed kernel costs one case.

    python tests/gpu/run_isolated.py [paths] [-k EXPR] [--workers 12] [--timeout 20] [--budget 220]

Workers collect once and then take cases from the parent, a few at a time, so that kernels compile in
parallel. A case that exceeds the timeout is reported as HANG: its worker is killed and a new one goes
on. After an error that may have broken the CUDA context the worker is replaced as well. Prints a short
table; --log FILE (default: $OUT/isolated.txt where OUT is set) gets every case and full errors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections import deque
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH = 6
MARK = "@case "


# ---------------------------------------------------------------------- worker
class Worker:
    """The pytest plugin of a worker: runs the items whose indexes arrive on standard input."""

    def __init__(self, out) -> None:
        self.out = out
        self.phases: list = []

    def say(self, **message) -> None:
        self.out.write(MARK + json.dumps(message) + "\n")
        self.out.flush()

    def pytest_runtestloop(self, session) -> bool:
        import torch

        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        self.say(ready=[item.nodeid for item in session.items])
        for line in sys.stdin:
            item = session.items[int(line)]
            self.phases = []
            start = time.perf_counter()
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            outcome, text = self.outcome()
            dead = outcome == "failed" and context_is_dead()
            seconds = time.perf_counter() - start
            self.say(done=int(line), outcome=outcome, text=text, seconds=seconds, dead=dead)
        return True

    def pytest_runtest_logreport(self, report) -> None:
        self.phases.append(report)

    def outcome(self) -> tuple[str, str]:
        """failed, skipped or passed, with the error or the reason."""
        for report in self.phases:
            if report.failed:
                return "failed", str(report.longrepr)
        for report in self.phases:
            if report.skipped:
                reason = report.longrepr
                return "skipped", str(reason[2] if isinstance(reason, tuple) else reason)
        return "passed", ""


def context_is_dead() -> bool:
    """Whether CUDA calls of this process fail from now on."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    return False


def work(arguments: list[str]) -> None:
    """A worker: messages on the standard output as it was, pytest's own output to standard error."""
    import pytest

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    flags = ["-q", "-p", "no:cacheprovider", "--capture=no"]
    pytest.main([*flags, *arguments], plugins=[Worker(out)])
    # Leaves without the clean-up of a context that may hang.
    os._exit(0)


# ---------------------------------------------------------------------- parent
@dataclass
class Case:
    """What became of one case."""

    name: str
    outcome: str
    seconds: float = 0.0
    text: str = ""


@dataclass
class Pool:
    """The cases and what became of them, shared by the threads that drive workers."""

    options: argparse.Namespace
    deadline: float
    names: list[str] = field(default_factory=list)
    todo: deque[int] = field(default_factory=deque)
    results: dict[int, Case] = field(default_factory=dict)
    troubles: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, names: list[str]) -> None:
        """Called by every worker that is ready; the first one fixes the list."""
        with self.lock:
            if not self.names:
                self.names = names
                self.todo.extend(range(len(names)))

    def take(self) -> list[int]:
        with self.lock:
            return [self.todo.popleft() for _ in range(min(BATCH, len(self.todo)))]

    def give_back(self, indexes: list[int]) -> None:
        with self.lock:
            self.todo.extendleft(reversed(indexes))

    def finish(self, index: int, outcome: str, seconds: float, text: str) -> None:
        with self.lock:
            self.results[index] = Case(self.names[index], outcome, seconds, text)

    @property
    def hangs(self) -> int:
        return sum(r.outcome in ("HANG", "CRASH") for r in self.results.values())

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline or self.hangs >= self.options.max_hangs


class Driver(threading.Thread):
    """Feeds one worker process at a time until nothing is left."""

    def __init__(self, pool: Pool, arguments: list[str]) -> None:
        super().__init__(daemon=True)
        self.pool = pool
        self.arguments = arguments
        self.process: subprocess.Popen[str] | None = None
        self.messages: deque[dict] = deque()
        self.arrived = threading.Condition()
        self.started = 0

    def run(self) -> None:
        failures = 0
        while not self.pool.is_over and failures < 2:
            if not self.spawn():
                failures += 1
                continue
            if self.feed():
                break
        self.stop()

    def spawn(self) -> bool:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", *self.arguments]
        path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in path if p)}
        self.messages = deque()
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self.read, args=(self.process, self.messages), daemon=True).start()
        message = self.next_message(self.pool.options.start_timeout)
        if message is None or "ready" not in message:
            self.pool.troubles.append(f"a worker did not start (exit {self.stop()})")
            return False
        self.pool.start(message["ready"])
        return True

    def read(self, process: subprocess.Popen[str], messages: deque[dict]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                with self.arrived:
                    messages.append(json.loads(line[len(MARK) :]))
                    self.arrived.notify_all()
        with self.arrived:
            messages.append({"gone": True})
            self.arrived.notify_all()

    def next_message(self, seconds: float) -> dict | None:
        seconds = max(0.0, min(seconds, self.pool.deadline - time.monotonic()))
        with self.arrived:
            self.arrived.wait_for(lambda: bool(self.messages), seconds)
            return self.messages.popleft() if self.messages else None

    def feed(self) -> bool:
        """Runs cases until there are none (True) or the worker must be replaced (False)."""
        while not self.pool.is_over:
            batch = self.pool.take()
            if not batch:
                return True
            for position, index in enumerate(batch):
                if not self.one(index):
                    self.pool.give_back(batch[position + 1 :])
                    self.stop()
                    return False
        return True

    def one(self, index: int) -> bool:
        """Runs a case; whether the worker is fit for another one."""
        assert self.process is not None
        assert self.process.stdin is not None
        start = time.monotonic()
        try:
            self.process.stdin.write(f"{index}\n")
            self.process.stdin.flush()
            message = self.next_message(self.pool.options.timeout)
        except OSError:
            message = {"gone": True}
        seconds = time.monotonic() - start
        if message is None:
            over = time.monotonic() >= self.pool.deadline
            what = "the budget ended" if over else "no end"
            self.pool.finish(
                index, "CUT" if over else "HANG", seconds, f"{what} after {seconds:.0f} s"
            )
            return False
        if "done" not in message:
            self.pool.finish(index, "CRASH", seconds, f"the worker died, exit {self.stop()}")
            return False
        self.pool.finish(index, message["outcome"], message["seconds"], message["text"])
        return not message["dead"]

    def stop(self) -> int | None:
        """Ends the worker and what it started, whose kernels may spin; its exit status."""
        if self.process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            return None


def reason(case: Case) -> str:
    """The line of an error that says most."""
    lines = [line.strip() for line in case.text.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines[-1:] or [""])[0][:150]


def report(pool: Pool, seconds: float) -> int:
    """Prints the table; returns the exit status."""
    results = [pool.results[i] for i in sorted(pool.results)]
    log = pool.options.log
    if log:
        with open(log, "w", encoding="utf-8") as file:
            for r in results:
                file.write(f"{r.outcome:8} {r.seconds:7.2f} s  {r.name}\n")
                file.write("".join(f"    {line}\n" for line in r.text.splitlines()))
    tests: dict[str, Counter[str]] = {}
    for r in results:
        tests.setdefault(r.name.split("::")[-1].split("[")[0], Counter())[r.outcome] += 1
    print(f"{'test':44} {'cases':>5} {'pass':>5} {'skip':>5} {'fail':>5} {'hang':>5}")
    for name, n in tests.items():
        hung = n["HANG"] + n["CRASH"] + n["CUT"]
        row = (sum(n.values()), n["passed"], n["skipped"], n["failed"], hung)
        print(
            f"{name:44} " + " ".join(f"{x:5}" for x in row) + ("" if row[3:] == (0, 0) else "  <")
        )
    bad = [r for r in results if r.outcome not in ("passed", "skipped")]
    bad.sort(key=lambda r: r.outcome == "failed")
    for r in bad[: pool.options.show]:
        print(f"{r.outcome:7} {r.name.split('::')[-1]}\n        {reason(r)}")
    if len(bad) > pool.options.show:
        print(f"... and {len(bad) - pool.options.show} more{f', all in {log}' if log else ''}")
    for text in pool.troubles[:5]:
        print(text)
    for text, count in Counter(r.text for r in results if r.outcome == "skipped").items():
        print(f"skipped {count}: {text[:120]}")
    total = Counter(r.outcome for r in results)
    missing = len(pool.names) - len(results)
    slow = max(results, key=lambda r: r.seconds, default=Case("none", ""))
    print(f"{dict(total)}, {missing} not run, {seconds:.0f} s wall, "
          f"slowest {slow.seconds:.1f} s {slow.name.split('::')[-1]}")  # fmt: skip
    return 0 if pool.names and not bad and not missing else 1


def main() -> int:
    """The parent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="*", default=[])
    parser.add_argument("-k", dest="expression", default="", help="as pytest's -k")
    parser.add_argument("--workers", type=int, default=max(1, min(14, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--timeout", type=float, default=20, help="seconds a case may take")
    parser.add_argument("--start-timeout", type=float, default=120)
    parser.add_argument("--budget", type=float, default=540, help="seconds for everything")
    parser.add_argument("--max-hangs", type=int, default=30, help="give up after so many")
    parser.add_argument("--show", type=int, default=40, help="failures to print")
    default_log = os.path.join(os.environ["OUT"], "isolated.txt") if os.environ.get("OUT") else ""
    parser.add_argument("--log", default=default_log)
    options = parser.parse_args()
    start = time.monotonic()
    arguments = options.paths or ["tests/gpu"]
    if options.expression:
        arguments += ["-k", options.expression]
    pool = Pool(options, start + options.budget)
    drivers = [Driver(pool, arguments) for _ in range(options.workers)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    return report(pool, time.monotonic() - start)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2:])
    sys.exit(main())
