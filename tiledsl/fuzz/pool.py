"""Worker processes, each driven by a thread.

Cases run side by side, and one that hangs or crashes costs its process only.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from tiledsl.fuzz.case import Case
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels
from tiledsl.fuzz.outcome import Outcome
from tiledsl.fuzz.worker import MARK
from tiledsl.fuzz.worker import outcome_of

START_SECONDS = 180.0
MAX_STARTS = 3
"""Failed starts of one worker before it is given up."""


@dataclass(frozen=True)
class Config:
    """What workers do. timeout: seconds of one case, those of its launches on a device apart."""

    seed: int
    only: str
    levels: Levels
    timeout: float
    launch_timeout: float = 45.0


class Worker:
    """One process at a time, started again after a hang, a crash or a broken context."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.process: subprocess.Popen[str] | None = None
        self.lines: deque[str | None] = deque()
        self.arrived = threading.Condition()

    def start(self) -> bool:
        """Starts the process; whether it is there."""
        given = {
            "seed": self.config.seed,
            "only": self.config.only,
            "levels": asdict(self.config.levels),
        }
        one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tiledsl.fuzz.worker", json.dumps(given)]
        self.lines = deque()
        self.process = subprocess.Popen(
            command, env={**os.environ, **one}, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        return self._next(START_SECONDS) is not None

    def _read(self, process: subprocess.Popen[str], lines: deque[str | None]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError):  # closed by stop()
            for line in process.stdout:
                if line.startswith(MARK):
                    self._put(lines, line[len(MARK) :])
        self._put(lines, None)

    def _put(self, lines: deque[str | None], item: str | None) -> None:
        with self.arrived:
            lines.append(item)
            self.arrived.notify_all()

    def _next(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None when the process is gone or late."""
        with self.arrived:
            self.arrived.wait_for(lambda: bool(self.lines), seconds)
            line = self.lines.popleft() if self.lines else None
        return None if line is None else json.loads(line)

    def ask(self, case: str) -> Outcome | None:
        """Runs the case of a number or of a text; None when no worker can be started."""
        for _ in range(MAX_STARTS):
            if self.process is not None or self.start():
                break
            self.stop()
        else:
            return None
        assert self.process is not None
        assert self.process.stdin is not None
        begin, kind, seconds = time.monotonic(), "hang: process", self.config.timeout
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            answer = self._next(seconds)
            if answer is not None and "launching" in answer:
                begin, kind, seconds = time.monotonic(), "hang: device", self.config.launch_timeout
                answer = self._next(seconds)
        except OSError:
            answer = None
        if answer is None:
            late = time.monotonic() - begin >= seconds * 0.99
            status = self.stop()
            text = f"no end after {seconds:.0f} s"
            if not late:
                kind, text = "crash: process", f"the process ended with status {status}"
            return Outcome(case, findings=[Finding(kind, text)])
        if answer["dead"]:
            self.stop()
        return outcome_of(answer["outcome"])

    def stop(self) -> int | None:
        """Ends the process; its status."""
        process, self.process = self.process, None
        if process is None:
            return None
        if process.poll() is None:
            process.kill()
        try:
            return process.wait(10)
        except subprocess.TimeoutExpired:
            return None
        finally:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def run_all(
    config: Config,
    numbers: range,
    workers: int,
    deadline: float,
    done: Callable[[int, Outcome], None],
) -> None:
    """Runs cases by number until the deadline; `done` is called by one thread at a time."""
    todo = deque(numbers)
    lock = threading.Lock()

    def drive() -> None:
        worker = Worker(config)
        while time.monotonic() < deadline:
            with lock:
                if not todo:
                    break
                number = todo.popleft()
            made = worker.ask(str(number))
            with lock:
                if made is None:
                    todo.clear()
                    made = Outcome(str(number), findings=[Finding("crash: process", "no start")])
                done(number, made)
        worker.stop()

    threads = [threading.Thread(target=drive, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fails_like(worker: Worker, kind: str, text: str) -> Callable[[Case], bool]:
    """Whether a case shows the same finding in a worker."""
    key = signature(kind, text)

    def fails(case: Case) -> bool:
        made = worker.ask(repr(case))
        return made is not None and any(signature(f.kind, f.text) == key for f in made.findings)

    return fails


def signature(kind: str, text: str) -> str:
    """What makes two findings the same: the kind, and for a crash its words without numbers."""
    if not kind.startswith(("crash", "fault")):
        return kind
    head = text.splitlines()[0].split(";")[0][:120] if text else ""
    return kind + " " + "".join(c for c in head if c.isalpha() or c == " ")
