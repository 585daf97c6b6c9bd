"""Kernels in memory and on disk, keyed by everything that decides the cubin."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future

from tiledsl.codegen.module import KernelModule
from tiledsl.runtime.codec import compiled_record
from tiledsl.runtime.codec import decode_compiled
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.nvrtc import compile_module
from tiledsl.runtime.nvrtc import nvrtc_version
from tiledsl.runtime.store import store
from tiledsl.target import HOPPER
from tiledsl.target import Target

KIND = "cubin"

Compiler = Callable[[KernelModule, Target, tuple[str, ...]], CompiledKernel]


def kernel_key(
    module: KernelModule, target: Target = HOPPER, *, options: tuple[str, ...] = ()
) -> str:
    """Hash of the final text, the headers, the options, the NVRTC version and the architecture.

    Raises:
        NvrtcError: NVRTC is missing.
    """
    digest = hashlib.sha256()
    parts = [repr(nvrtc_version()), target.arch, module.name, module.source]
    parts += [text for header in module.headers for text in header]
    parts += options
    for part in parts:
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    # The number of headers keeps a header pair apart from two options.
    digest.update(str(len(module.headers)).encode())
    return digest.hexdigest()


def _compile(module: KernelModule, target: Target, options: tuple[str, ...]) -> CompiledKernel:
    """From the disk cache, or from NVRTC."""
    key = kernel_key(module, target, options=options)
    record = store().get(KIND, key)
    if record is not None:
        try:
            return decode_compiled(record.facts["compiled"], record.blobs)
        except (KeyError, TypeError, ValueError):
            pass  # another version's file
    made = compile_module(module, target, options=options)
    store().put(KIND, key, compiled_record(made, module.name))
    return made


class KernelCache:
    """Compiled kernels by key. Thread-safe: one compile per key, different keys in parallel.

    A compile that fails is not kept; every thread that waited for it gets its error.
    """

    def __init__(self, compiler: Compiler = _compile) -> None:
        self._compiler = compiler
        self._lock = threading.Lock()
        self._kernels: dict[str, Future[CompiledKernel]] = {}

    def after_fork(self) -> None:
        """The threads that hold the lock or compile are not in the new process."""
        self._lock = threading.Lock()
        self._kernels = {key: made for key, made in self._kernels.items() if made.done()}

    def get(
        self, module: KernelModule, target: Target = HOPPER, *, options: tuple[str, ...] = ()
    ) -> CompiledKernel:
        """The compiled kernel, compiling it when it is new.

        Raises:
            NvrtcError: NVRTC is missing or rejected the text.
        """
        key, entry, is_new = self._entry(module, target, options)
        if is_new:
            self._fill(key, entry, module, target, options)
        return entry.result()

    def start(
        self, module: KernelModule, target: Target = HOPPER, *, options: tuple[str, ...] = ()
    ) -> Future[CompiledKernel]:
        """As `get`, beside the caller: its result is what `get` returns or raises.

        Raises:
            NvrtcError: NVRTC is missing.
        """
        key, entry, is_new = self._entry(module, target, options)
        if is_new:
            call = (key, entry, module, target, options)
            threading.Thread(target=self._fill, args=call, name="tiledsl-nvrtc").start()
        return entry

    def _entry(
        self, module: KernelModule, target: Target, options: tuple[str, ...]
    ) -> tuple[str, Future[CompiledKernel], bool]:
        """The key of a kernel, its entry, and whether that has to be filled."""
        key = kernel_key(module, target, options=options)
        with self._lock:
            entry = self._kernels.get(key)
            if entry is not None:
                return key, entry, False
            entry = self._kernels[key] = Future()
        return key, entry, True

    def _fill(
        self,
        key: str,
        entry: Future[CompiledKernel],
        module: KernelModule,
        target: Target,
        options: tuple[str, ...],
    ) -> None:
        try:
            entry.set_result(self._compiler(module, target, options))
        except BaseException as fault:
            with self._lock:
                self._kernels.pop(key, None)
            entry.set_exception(fault)

    def put(self, key: str, kernel: CompiledKernel) -> None:
        """Adds a kernel that came from elsewhere, such as a file."""
        entry: Future[CompiledKernel] = Future()
        entry.set_result(kernel)
        with self._lock:
            self._kernels[key] = entry

    def clear(self) -> None:
        """Forgets all kernels."""
        with self._lock:
            self._kernels.clear()

    def __len__(self) -> int:
        return len(self._kernels)

    def __contains__(self, key: str) -> bool:
        return key in self._kernels


KERNELS = KernelCache()
os.register_at_fork(after_in_child=KERNELS.after_fork)
