"""What a compile does how often, counted instead of timed."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import compiled as facts
from tiledsl import compiler
from tiledsl.runtime.cache import KernelCache
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.ws import plan_sizes
from tiledsl.ws import planner
from tiledsl.ws import select
from tiledsl.ws import tile_problem
from tiledsl.ws.single_plan import SinglePlan

KERNEL = CompiledKernel(b"cubin", "", 8, 0, 0, (), (), 0.1)


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def compiled(monkeypatch, compile_):
    """The request's kernel, where NVRTC is `compile_`."""
    monkeypatch.setattr(compiler, "KERNELS", KernelCache(compile_))
    x = torch.empty(1024, 1024, device="meta", dtype=torch.bfloat16)
    _, request = matmul.request_for((x, x, x), {}, (8, 8))
    return compiler.compile_kernel(request)


def test_pricing_looks_at_the_kernel_once(monkeypatch):
    """Hundreds of plans are priced; what they share does not depend on how many there are."""
    seen = Counter()

    def counted(module, name):
        found = getattr(module, name)

        def call(*given, **named):
            seen[name] += 1
            return found(*given, **named)

        monkeypatch.setattr(module, name, call)

    for module, name in [
        (plan_sizes, "is_turned"),
        (planner, "estimate"),
        (plan_sizes, "SmemType"),
        (tile_problem, "is_placed"),
        (tile_problem, "HostValues"),
    ]:
        counted(module, name)
    auto = dict.fromkeys(("BM", "BN", "BK"), tl.auto)
    x = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    grid = lambda meta: (4096 // meta["BM"], -(-4096 // meta["BN"]))  # noqa: E731
    _, request = matmul.request_for((x, x, x), auto, grid)
    tiles = {ranked.tile for ranked in select.choose(request, compiler.device_graph).items}
    assert seen["estimate"] > 300
    assert seen["SmemType"] < 3 * len(tiles)
    assert seen["is_turned"] == 1
    assert seen["is_placed"] == 2
    assert seen["HostValues"] <= 4


def test_the_proof_is_made_while_nvrtc_compiles(monkeypatch):
    started, proved = threading.Event(), threading.Event()
    check = facts.check

    def nvrtc(*_):
        started.set()
        assert proved.wait(timeout=60), "nobody proves beside NVRTC"
        return KERNEL

    def prove(graph):
        assert started.wait(timeout=60), "NVRTC was not started before the proof"
        made = check(graph)
        proved.set()
        return made

    monkeypatch.setattr(facts, "check", prove)
    made = compiled(monkeypatch, nvrtc)
    assert made.compiled is KERNEL
    assert made.certificate is not None
    assert made.certificate.proved


def test_a_plan_that_is_not_proved_is_given_up(monkeypatch):
    made = compiled(monkeypatch, lambda *_: KERNEL)
    proof = made.certificate
    assert proof is not None
    proof.obligations[0] = replace(proof.obligations[0], proved=False)
    monkeypatch.setattr(facts, "check", lambda _: proof)
    made = compiled(monkeypatch, lambda *_: KERNEL)
    assert isinstance(made.plan, SinglePlan)
    assert any("not proved" in note for note in made.notes)
