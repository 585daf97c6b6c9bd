"""The kernel cache: what is in the key, one compile per key, failures."""

import dataclasses
import threading
import time

import pytest

from tiledsl.codegen.module import KernelModule
from tiledsl.errors import NvrtcError
from tiledsl.runtime import cache
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.target import HOPPER

MODULE = KernelModule("k", "text", (("a.cuh", "b"),), (), 32)
KERNEL = CompiledKernel(b"cubin", "", 8, 0, 0, (), (), 0.1)


def test_key_holds_all_that_decides_the_cubin(monkeypatch):
    keys = {
        cache.kernel_key(MODULE),
        cache.kernel_key(dataclasses.replace(MODULE, name="m")),
        cache.kernel_key(dataclasses.replace(MODULE, source="texT")),
        cache.kernel_key(dataclasses.replace(MODULE, headers=(("a.cuh", "c"),))),
        cache.kernel_key(dataclasses.replace(MODULE, headers=())),
        cache.kernel_key(MODULE, options=("-G",)),
        cache.kernel_key(dataclasses.replace(MODULE, headers=()), options=("a.cuh", "b")),
        cache.kernel_key(MODULE, dataclasses.replace(HOPPER, arch="sm_100a")),
    }
    monkeypatch.setattr(cache, "nvrtc_version", lambda: (99, 9))
    keys.add(cache.kernel_key(MODULE))
    assert len(keys) == 9


def test_key_ignores_launch_facts():
    other = dataclasses.replace(MODULE, num_threads=64, smem_bytes=1024)
    assert cache.kernel_key(MODULE) == cache.kernel_key(other)


def test_one_compile_for_many_threads():
    count = 0

    def compiler(*_):
        nonlocal count
        count += 1
        time.sleep(0.05)
        return KERNEL

    kernels = cache.KernelCache(compiler)
    found = []
    threads = [threading.Thread(target=lambda: found.append(kernels.get(MODULE))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 1
    assert len(found) == 8
    assert all(kernel is KERNEL for kernel in found)
    assert cache.kernel_key(MODULE) in kernels


def test_failure_is_not_kept():
    answers = [NvrtcError("no"), KERNEL]

    def compiler(*_):
        answer = answers.pop(0)
        if isinstance(answer, NvrtcError):
            raise answer
        return answer

    kernels = cache.KernelCache(compiler)
    with pytest.raises(NvrtcError, match="no"):
        kernels.get(MODULE)
    assert len(kernels) == 0
    assert kernels.get(MODULE) is KERNEL


def test_a_compile_beside_its_caller():
    goes_on, done = threading.Event(), []

    def compiler(*_):
        assert goes_on.wait(timeout=20)
        done.append(1)
        return KERNEL

    kernels = cache.KernelCache(compiler)
    started = kernels.start(MODULE)
    assert kernels.start(MODULE) is started
    assert not done
    goes_on.set()
    assert started.result(timeout=20) is KERNEL
    assert kernels.get(MODULE) is KERNEL
    assert len(done) == 1


def test_a_failure_beside_its_caller_is_told_to_it():
    def compiler(*_):
        raise NvrtcError("no")

    kernels = cache.KernelCache(compiler)
    with pytest.raises(NvrtcError, match="no"):
        kernels.start(MODULE).result(timeout=20)
    assert len(kernels) == 0


def test_put_and_clear():
    kernels = cache.KernelCache(lambda *_: pytest.fail("compiled"))
    kernels.put(cache.kernel_key(MODULE), KERNEL)
    assert kernels.get(MODULE) is KERNEL
    kernels.clear()
    assert len(kernels) == 0
