"""Jobs in forked processes: answers, faults, deaths, deadlocks."""

from __future__ import annotations

import os
import signal
import threading
import time

from tiledsl.runtime.workers import MAX_ANSWER_BYTES
from tiledsl.runtime.workers import cpus
from tiledsl.runtime.workers import forked


def children() -> str:
    with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
        return file.read()


def test_answers_come_back_by_job_from_other_processes():
    before = children()
    jobs = [lambda at=at: f"{at} {os.getpid()}".encode() for at in range(40)]
    answers = forked(jobs, workers=4, seconds=60)
    numbers, pids = zip(*(a.split() for a in answers), strict=True)
    assert [int(n) for n in numbers] == list(range(40))
    assert str(os.getpid()).encode() not in pids
    assert children() == before
    assert cpus() >= 1


def test_what_raises_or_dies_has_no_answer_and_the_rest_goes_on():
    def raises():
        raise ValueError

    def dies():
        os.kill(os.getpid(), signal.SIGKILL)

    jobs = [lambda: b"a", raises, dies, lambda: b"b" * 9999, *[lambda: b"c"] * 8]
    answers = forked(jobs, workers=2, seconds=60)
    assert answers == [b"a", None, None, b"b" * MAX_ANSWER_BYTES, *[b"c"] * 8]


def test_a_lock_that_nobody_releases_costs_the_deadline():
    lock = threading.Lock()
    lock.acquire()

    def waits():
        lock.acquire()
        return b"never"

    start = time.monotonic()
    answers = forked([waits, lambda: b"a", lambda: b"b"], workers=2, seconds=0.5)
    assert answers == [None, b"a", b"b"]
    assert time.monotonic() - start < 30


def test_one_worker_forks_nothing():
    assert forked([lambda: b"a"], workers=8, seconds=1) == [None]
    assert forked([lambda: b"a"] * 3, workers=1, seconds=1) == [None] * 3
