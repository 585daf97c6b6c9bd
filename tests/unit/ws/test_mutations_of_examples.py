"""Seeded faults in every example kernel with roles: refused, or without an effect in simulations."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest

from tests.emulation.comparing import launches_of
from tests.emulation.example_cases import ATTENTION
from tests.emulation.example_cases import MATMULS
from tests.emulation.matmuls import compiled
from tests.emulation.recorded import Copies
from tests.emulation.recorded import Launch
from tests.emulation.recorded import as_numpy
from tests.emulation.recorded import distance
from tests.emulation.recorded import tensors_of
from tests.unit.ws.mutations import MUTATIONS
from tests.unit.ws.mutations import Mutation
from tests.unit.ws.mutations import apply
from tests.unit.ws.mutations import sites
from tiledsl.call import normalize_grid
from tiledsl.ir.graph import TileGraph
from tiledsl.runtime.interop import numpy_view
from tiledsl.ws.check import check
from tiledsl.ws.check_state import Fault
from tiledsl.ws.simulate import simulate

CASES = {case.name: case for case in [*MATMULS, *ATTENTION]}
EXAMPLES = [
    ("relu", "linear"), ("gated_mlp", "gated_mlp"), ("back_to_back", "back_to_back"),
    ("batched", "batched_matmul"), ("grouped", "grouped_matmul"), ("fp8", "fp8_matmul"),
    ("fp8, fast sums", "fp8_matmul"), ("block scales", "block_scaled_matmul"),
    ("residual", "residual"), ("quantised", "quantised"), ("with_squares", "with_squares"),
    ("both_ways", "both_ways"), ("int8 weights", "weight_only"), ("int4 weights", "weight_only_int4"),
    ("rms norm, then a product", "norm_matmul"), ("list of products", "grouped_list"),
    ("full", "attention_kernel"), ("causal", "attention_kernel"),
    ("gradients", "grad_q_kernel"), ("gradients", "grad_kv_kernel"),
    ("packed gradients", "varlen_grad_q_kernel"), ("packed gradients", "varlen_grad_kv_kernel"),
    ("fp8 attention", "fp8_attention_kernel"), ("linear attention", "linear_attention_kernel"),
]  # fmt: skip
"""Cases, and a kernel of theirs."""
MIN_KINDS = 25
TOLERANCE = 2.0**-6


@functools.cache
def launch_of(case: str, kernel: str) -> Launch:
    found = {launch.name: launch for launch in launches_of(CASES[case], "cpu")}
    return found[kernel]


@functools.cache
def made_of(case: str, kernel: str) -> tuple[bytes, tuple[int, int, int]]:
    """The MACHINE graph, and the grid of the launch."""
    launch = launch_of(case, kernel)
    made = compiled(launch.kernel, launch.args, launch.grid, **launch.options)
    assert made.machine is not None, f"{kernel} is not specialised: {made.declined}"
    call = launch.kernel._bind(launch.args, launch.options)
    grid = normalize_grid(launch.grid, made.constants, call.runtime)
    return pickle.dumps(made.machine), grid


def simulated(case: str, kernel: str, graph: TileGraph, seed: int) -> dict[str, np.ndarray]:
    """The arguments after a simulation."""
    launch = launch_of(case, kernel)
    values = tuple(map(Copies("cpu").of, launch.args))
    runtime: dict[str, Any] = launch.kernel._bind(values, launch.options).runtime
    given = {n: as_numpy(v) for n, v in runtime.items()}
    simulate(graph, given, made_of(case, kernel)[1], seed=seed)
    names = list(launch.kernel.description.names)
    found = enumerate(tensors_of(names, values))
    return {f"{name} {i}": np.array(numpy_view(t)) for i, (name, t) in found}


def shows(case: str, kernel: str, graph: TileGraph, want: dict[str, np.ndarray]) -> bool:
    """Whether a simulation violates an obligation or computes something else."""
    for seed in range(2):
        try:
            got = simulated(case, kernel, graph, seed)
        except (Fault, KeyError):
            return True
        if any(distance(want[n], got[n]) > TOLERANCE for n in want):
            return True
    return False


def faults(case: str, kernel: str) -> list[tuple[Mutation, int]]:
    graph = pickle.loads(made_of(case, kernel)[0])
    return [(m, site) for m in MUTATIONS for site in sites(graph, m)]


@pytest.mark.slow
@pytest.mark.parametrize(("case", "kernel"), EXAMPLES, ids=str)
def test_faults_are_refused_or_change_nothing(case: str, kernel: str) -> None:
    data = made_of(case, kernel)[0]
    assert check(pickle.loads(data)).proved
    want = simulated(case, kernel, pickle.loads(data), 0)
    kinds: set[str] = set()
    accepted = refused = 0
    missed: list[str] = []
    for mutation, site in faults(case, kernel):
        graph = pickle.loads(data)
        apply(graph, mutation, site)
        if not check(graph).proved:
            kinds.add(mutation.name)
            refused += 1
            continue
        accepted += 1
        if shows(case, kernel, graph, want):
            missed.append(f"{mutation.name} at op {site}")
    print(f"@ {kernel} ({case}): {len(kinds)} kinds, {refused} refused, {accepted} equivalent")
    assert not missed
    assert len(kinds) >= MIN_KINDS
