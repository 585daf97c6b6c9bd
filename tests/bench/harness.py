"""What the benchmarks share: worker processes with a watchdog, CUDA graphs, blocks timed in turn.

A parent hands jobs to a worker as JSON lines; the worker says what it is at, its rows, and that it is
done. A contender that hangs or crashes is named and left out of the next attempt.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MARK = "@bench "


# ---------------------------------------------------------------------- measuring
def capture(launch: Callable[[int], object], n: int, sets: int) -> torch.cuda.CUDAGraph:
    """A graph of n launches over rotating sets of inputs, replayed once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch(0)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(n):
            launch(i % sets)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def replay(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """One timed block."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    return start, end


def timed(graphs: list[torch.cuda.CUDAGraph], n: int, rounds: int) -> list[list[float]]:
    """Microseconds of a launch of each graph in each round, all in turn, in a new order each round.

    Under the power limit a block's clock depends on the one before: a fixed order shifts ratios by
    several percent.
    """
    times: list[list[float]] = [[] for _ in graphs]
    for r in range(2 + rounds):
        order = random.sample(range(len(graphs)), len(graphs))
        blocks = [(i, *replay(graphs[i])) for i in order]
        torch.cuda.synchronize()
        if r >= 2:  # The first rounds settle the clocks.
            for i, start, end in blocks:
                times[i].append(start.elapsed_time(end) / n * 1e3)
    return times


# ---------------------------------------------------------------------- the worker
def serve(run: Callable[[dict[str, Any], Callable[..., None]], None]) -> None:
    """Runs jobs from standard input until it ends; messages go to standard output."""

    def say(**message: Any) -> None:
        print(MARK + json.dumps(message), flush=True)

    torch.zeros(1, device="cuda")
    say(ready=torch.cuda.get_device_name())
    for line in sys.stdin:
        torch.manual_seed(time.time_ns() % 2**31)
        try:
            run(json.loads(line), say)
            say(done=True)
        except Exception as error:
            say(failed=f"{type(error).__name__}: {error}"[:600])
            if "CUDA" in str(error):
                os._exit(3)
        torch.cuda.empty_cache()
    os._exit(0)


# ---------------------------------------------------------------------- the parent
class Parent:
    """Runs jobs in workers and kills those that hang.

    script: what a worker runs, with `--worker`. baseline: the contender without which a job ends.
    options: `budget` and `timeout` in seconds.
    """

    script: Path
    baseline: str

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.end = time.monotonic() + options.budget
        self.process: subprocess.Popen[str] | None = None
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def spawn(self) -> bool:
        """Starts a worker; whether it is ready."""
        self.messages = messages = queue.Queue()
        command = [sys.executable, str(self.script), "--worker", *sys.argv[1:]]
        self.process = process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(MARK):
                    messages.put(json.loads(line[len(MARK) :]))
                else:
                    print(line, end="")
            messages.put(None)

        threading.Thread(target=read, daemon=True).start()
        message = self.next(120)
        if isinstance(message, dict) and "ready" in message:
            return True
        self.kill()
        return False

    def next(self, seconds: float) -> dict[str, Any] | str | None:
        """The next message; None when the worker is gone, a word when it is late."""
        left = self.end - time.monotonic()
        try:
            return self.messages.get(timeout=max(0.1, min(seconds, left)))
        except queue.Empty:
            return "late" if left > seconds else "over"

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        self.process = None

    def job(self, shape: Any, dtype: str) -> list[dict[str, Any]]:
        """Rows of one shape. Starts again without a contender that hung or crashed."""
        bad: list[str] = []
        while time.monotonic() < self.end and len(bad) < 4:
            if self.process is None and not self.spawn():
                return [{"name": "worker", "refused": "does not start"}]
            rows, state, at = self.attempt(shape, dtype, bad)
            if state == "done":
                return rows + [{"name": name, "refused": "hung or crashed"} for name in bad]
            self.kill()
            if state == "over":
                return [*rows, {"name": at, "refused": "the budget ended"}]
            print(f"  {shape} {dtype}: {at}: {state}", flush=True)
            bad.append(at)
            if at in ("timing", self.baseline, "start"):
                return [*rows, {"name": at, "refused": state}]
        return [{"name": name, "refused": "hung or crashed"} for name in bad]

    def attempt(
        self, shape: Any, dtype: str, bad: list[str]
    ) -> tuple[list[dict[str, Any]], str, str]:
        """Rows so far, how it ended, and the contender at work then."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"shape": shape, "dtype": dtype, "bad": bad}) + "\n")
        self.process.stdin.flush()
        rows: list[dict[str, Any]] = []
        at = "start"
        while True:
            message = self.next(self.options.timeout)
            if not isinstance(message, dict):
                return rows, message or "crashed", at
            if "done" in message:
                return rows, "done", at
            if "failed" in message:
                return rows, message["failed"], at
            at = message.get("at", at)
            if "row" in message:
                rows.append(message["row"])
