"""Jobs in forked processes: compiles of a tuner or a manifest, which Python would run one by one.

A fork has everything that is imported and every kernel that is defined, scripts without a guard and
notebooks included, and starts at once. It runs the compiler and NVRTC, never CUDA, leaves programs
in the disk cache, and answers with a few bytes. A fork can inherit a lock that nobody will release:
what has not answered in time is killed, and the caller does those jobs itself.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from collections.abc import Sequence

Job = Callable[[], bytes]

HEAD = struct.Struct("<iI")
MAX_ANSWER_BYTES = 2048
"""With the head less than PIPE_BUF, so that answers do not mix."""
MAX_JOBS = 8192
"""Their numbers fit a pipe."""


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def forked(jobs: Sequence[Job], *, workers: int, seconds: float) -> list[bytes | None]:
    """Runs jobs in at most so many forks of this process.

    Args:
        jobs: each gives its answer, of which the first `MAX_ANSWER_BYTES` arrive.
        workers: processes; below 2 nothing is run.
        seconds: after which processes that are not done are killed.

    Returns:
        An answer per job; None where a job raised, was not done in time, or lost its process.
    """
    answers: list[bytes | None] = [None] * len(jobs)
    count = min(workers, len(jobs))
    if count < 2 or len(jobs) > MAX_JOBS:
        return answers
    todo, feed = os.pipe()
    for at in range(len(jobs)):
        os.write(feed, HEAD.pack(at, 0))
    os.close(feed)
    results, answer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    children = [_fork(jobs, todo, answer) for _ in range(count)]
    os.close(todo)
    os.close(answer)
    try:
        _collect(results, answers, time.monotonic() + seconds)
    finally:
        os.close(results)
        _end(children)
    return answers


def _fork(jobs: Sequence[Job], todo: int, answer: int) -> int:
    with warnings.catch_warnings():
        # From Python 3.12 on: other threads exist. What it means for us is said above.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while len(head := os.read(todo, HEAD.size)) == HEAD.size:
            at: int = HEAD.unpack(head)[0]
            _run(jobs[at], at, answer)
    finally:
        os._exit(0)  # no clean-up: it would be that of the parent


def _run(job: Job, at: int, answer: int) -> None:
    try:
        text = job()[:MAX_ANSWER_BYTES]
    except Exception:  # the caller runs it again and sees what is wrong
        return
    os.write(answer, HEAD.pack(at, len(text)) + text)


def _collect(results: int, answers: list[bytes | None], end: float) -> None:
    """Reads answers until every process is gone, or the time is up."""
    data = b""
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([results], [], [], left)
        part = os.read(results, 1 << 16) if ready else b""
        if not part:
            return
        data += part
        while len(data) >= HEAD.size:
            at, size = HEAD.unpack_from(data)
            if len(data) < HEAD.size + size:
                break
            answers[at] = data[HEAD.size : HEAD.size + size]
            data = data[HEAD.size + size :]


def _end(children: list[int]) -> None:
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            continue
