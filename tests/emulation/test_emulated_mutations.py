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
    "cooperative": {
        "BM": 128,
        "BN": 128,
        "num_consumers": 2,
        "ping_pong": False,
        "persistent": True,
        "cluster": 1,
        "num_stages": 3,
    },
    "one consumer": {
        "BM": 64,
        "BN": 64,
        "num_consumers": 1,
        "persistent": True,
        "cluster": 1,
        "num_stages": 2,
        "mma_depth": 2,
    },
}


@dataclass(frozen=True)
class Mutation:
    """A replacement in the text; `text` is part of the report."""

    old: str
    new: str
    text: str = ""


LINE = r"(?m)^ *"
RULED = {
    "no wait for a full slot": Mutation(
        LINE + r"mbarrier_wait\(a_b_full_1.*\n", "", "while a copy into it is in flight"
    ),
    "no wait for an empty slot": Mutation(
        LINE + r"mbarrier_wait\(a_b_empty_1.*\n", "", "has had them all"
    ),
    "wrong parity of a full slot": Mutation(
        r"(?m)(a_b_full_1 .*)a_b_at_2\.parity\)", r"\g<1>a_b_at_2.parity ^ 1)", "is in flight"
    ),
    "wrong parity of an empty slot": Mutation("parity ^ 1);", "parity);", "deadlock"),
    "no release": Mutation(LINE + r"if \(lane .*mbarrier_arrive.*a_b_empty_1.*\n", "", "deadlock"),
    "released before the multiply ends": Mutation(
        LINE + r"wgmma_wait<[01]>\(\);\n", "", "while a wgmma in flight reads it"
    ),
    "no expected bytes": Mutation(
        r"(?m)mbarrier_expect_tx(.*), \d+\);", r"mbarrier_arrive\g<1>);", "is in flight"
    ),
    "too few expected bytes": Mutation(
        r"(?m)mbarrier_expect_tx\((.*), \d+\);", r"mbarrier_expect_tx(\g<1>, 1024);", "deadlock"
    ),
    "no proxy fence": Mutation("fence_async_smem();", "", "without fence.proxy.async"),
    "no wait for the staging buffer": Mutation(
        LINE + r"if \(leader\) tma_wait_read<\d>\(\);\n", "", "a bulk store still reads"
    ),
    "the block leaves with stores in flight": Mutation(
        r"(?s)(.*)if \(leader\) tma_wait_read<0>\(\);", r"\g<1>", "the block ends while"
    ),
    "no barrier before the store": Mutation(
        r"(?m)fence_async_smem\(\);\n *named_barrier_sync\(.*\);",
        "fence_async_smem();",
        "without fence.proxy.async",
    ),
    "no wgmma fence": Mutation("wgmma_fence();", "", "without a wgmma.fence"),
    "no initialisation fence": Mutation("mbarrier_init_fence();", "", "was not published"),
    "one arrival too many is counted": Mutation(
        r"(?m)mbarrier_init\(a_b_full_1 (.*), 1\)",
        r"mbarrier_init(a_b_full_1 \g<1>, 2)",
        "deadlock",
    ),
    "one arrival is enough": Mutation(
        r"(?m)mbarrier_init\(a_b_empty_1 (.*), \d+\)",
        r"mbarrier_init(a_b_empty_1 \g<1>, 1)",
        "a wait by parity would miss it",
    ),
}
VALUES = {
    "shifted operand": Mutation("smem_desc_k<128>(a)", "smem_desc_k<128>(a + 32)"),
    "another swizzle": Mutation("smem_desc_k<128>(a)", "smem_desc_k<64>(a)"),
    "wrong step along K": Mutation("(a_desc, k * 32", "(a_desc, k * 64"),
    "old accumulator kept": Mutation(r"k \? 1u : keep|(?<=b_steps, )keep", "1u"),
    "store of another column": Mutation(r"(?m)tma_store\((.*)n_2", r"tma_store(\g<1>n_2 + 8"),
}


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_kernel_itself_is_right(structure: str) -> None:
    kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure])
    for seed in range(SEEDS):
        assert is_right(PROBLEM, run_matmul(PROBLEM, kernel, seed=seed))


@pytest.mark.parametrize("name", RULED)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_broken_rule_is_reported_on_the_first_schedule(structure: str, name: str) -> None:
    kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure])
    mutation = RULED[name]
    module = replaced(kernel.module, mutation.old, mutation.new)
    with pytest.raises(emulate.EmulationFault, match=mutation.text):
        run_matmul(PROBLEM, kernel, module=module)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_wrong_address_changes_the_result_or_meets_a_copy(structure: str, name: str) -> None:
    kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure])
    mutation = VALUES[name]
    module = replaced(kernel.module, mutation.old, mutation.new)
    try:
        c = run_matmul(PROBLEM, kernel, module=module)
    except emulate.EmulationFault:
        return
    assert not is_right(PROBLEM, c)
