"""Seeded faults in generated matmul kernels: each one is reported, or changes the result."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.emulation.harness import replaced
from tests.emulation.matmuls import Problem
from tests.emulation.matmuls import is_right
from tests.emulation.matmuls import matmul_kernel
from tests.emulation.matmuls import run_matmul
from tiledsl import emulate

PROBLEM = Problem(296, 264, 328)
SEEDS = 12
STRUCTURES = {
    "ping-pong": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 2, "num_stages": 2},
    "cooperative": {"BM": 128, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1, "num_stages": 3},
    "one consumer": {"BM": 64, "BN": 64, "num_consumers": 1, "cluster": 1, "num_stages": 2, "mma_depth": 2},
}


@dataclass(frozen=True)
class Mutation:
    """A replacement in the text; `text` is part of the report, empty where a wrong result is the sign."""

    old: str
    new: str
    text: str = ""


MUTATIONS = {
    "no wait for a full slot": Mutation(
        r"(?m)^( *)mbarrier_wait\(a_b_full_1.*\n", "", "while a copy into it is in flight|smem"
    ),
    "no wait for an empty slot": Mutation(r"(?m)^( *)mbarrier_wait\(a_b_empty_1.*\n", "", "smem"),
    "wrong parity of a full slot": Mutation(r"(a_b_full_1 .*)a_b_at_2\.parity\)(?#)", r"\g<1>a_b_at_2.parity ^ 1)", "in flight"),
    "wrong parity of an empty slot": Mutation("parity ^ 1);", "parity);", "deadlock"),
    "no release": Mutation(r"(?m)^( *)if \(lane .*mbarrier_arrive.*a_b_empty_1.*\n", "", "deadlock|smem"),
    "released before the multiply ends": Mutation(r"(?m)^( *)wgmma_wait<1>\(\);\n|( *)wgmma_wait<0>\(\);\n", "", "in flight|smem"),
    "no expected bytes": Mutation(r"(?m)^( *)mbarrier_expect_tx(.*), \d+\);(?#)", r"\g<1>mbarrier_arrive\g<2>);", "smem|deadlock"),
    "too few expected bytes": Mutation(r"mbarrier_expect_tx\((.*), (\d)(\d+)\);(?#)", r"mbarrier_expect_tx(\g<1>, 1024);", "deadlock|smem"),
    "no proxy fence": Mutation("fence_async_smem();", "", "without fence.proxy.async"),
    "no wait for the staging buffer": Mutation(r"(?m)^( *)if \(leader\) tma_wait_read<\d>\(\);\n", "", "still reads"),
    "the block leaves with stores in flight": Mutation(r"(?s)(.*)if \(leader\) tma_wait_read<0>\(\);", r"\g<1>", "still reads"),
    "no barrier before the store": Mutation(
        r"fence_async_smem\(\);\n *named_barrier_sync\(.*\);(?#)", "fence_async_smem();", "smem|wrote without"
    ),
    "no wgmma fence": Mutation("wgmma_fence();", "", "without a wgmma.fence"),
    "no initialisation fence": Mutation("mbarrier_init_fence();", "", "not published"),
    "one arrival too many is counted": Mutation(r"mbarrier_init\(a_b_full_1 (.*), 1\)(?#)", r"mbarrier_init(a_b_full_1 \g<1>, 2)", "deadlock"),
    "one arrival too few is counted": Mutation(r"mbarrier_init\(a_b_empty_1 (.*), (\d+)\)(?#)", r"mbarrier_init(a_b_empty_1 \g<1>, 1)", "smem"),
    "shifted operand": Mutation(r"smem_desc_k<128>\(a\)(?#)", "smem_desc_k<128>(a + 32)"),
    "another swizzle": Mutation(r"smem_desc_k<128>\(a\)(?#)", "smem_desc_k<64>(a)"),
    "wrong step along K": Mutation(r"\(a_desc, k \* 32(?#)", "(a_desc, k * 64", ""),
    "old accumulator kept": Mutation("k ? 1u : keep", "1u"),
    "store of another column": Mutation(r"tma_store\((.*)n_2(?#)", r"tma_store(\g<1>n_2 + 8"),
}
SKIPPED = {
    # A deeper queue of multiplies is needed for a wait that leaves one in flight.
}


def has(source: str, mutation: Mutation) -> bool:
    import re

    pattern = mutation.old if "(?" in mutation.old else re.escape(mutation.old)
    return re.search(pattern, source) is not None


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_kernel_itself_is_right(structure: str) -> None:
    kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure])
    for seed in range(SEEDS):
        assert is_right(PROBLEM, run_matmul(PROBLEM, kernel, seed=seed))


@pytest.mark.parametrize("name", MUTATIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_mutation_is_caught(structure: str, name: str) -> None:
    kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure])
    mutation = MUTATIONS[name]
    module = replaced(kernel.module, mutation.old, mutation.new)
    found = ""
    for seed in range(SEEDS):
        try:
            c = run_matmul(PROBLEM, kernel, module=module, seed=seed, seconds=20)
        except emulate.EmulationFault as fault:
            found = fault.message
            break
        if not is_right(PROBLEM, c):
            found = "wrong result"
            break
    assert found, "not caught"
    print(f"seed {seed}: {found}")
