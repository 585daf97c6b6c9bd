"""Tiles for the next epilogue are loaded a while after a tile begins: where their role stands still, how long."""

from __future__ import annotations

import pytest
import torch

from examples.fused_epilogues import grid_of
from examples.fused_epilogues import residual
from tests.emulation.matmuls import compiled
from tiledsl.compiled import Kernel
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.role import Pause
from tiledsl.ir.ops.role import Role
from tiledsl.ws.check import check
from tiledsl.ws.plan import Plan


def made_for(m: int, n: int, k: int, **options: object) -> Kernel:
    shapes = ((m, k), (n, k), (m, n), (m, n))
    x, w, old, out = (torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes)
    return compiled(residual, (x, w.t(), old, out), grid_of(m, n), **options)


def pauses(made: Kernel) -> list[Pause]:
    assert made.machine is not None
    return made.machine.find(Pause)


@pytest.mark.parametrize("k", [1024, 4096, 16384])
def test_loops_of_any_length_have_a_role_that_loads_for_the_epilogue(k: int) -> None:
    """Loads by the consumers are hidden by long loops, too, but not those of the last tile."""
    made = made_for(8192, 8192, k)
    assert isinstance(made.plan, Plan)
    assert made.plan.ping_pong
    assert made.plan.epilogue_slots == 2


def test_the_role_stands_still_before_chunks_that_it_loads_ahead() -> None:
    """Of three chunks two go into its slots; the last one waits for the epilogue and is late as it is."""
    made = made_for(8192, 8192, 4096)
    assert isinstance(made.plan, Plan)
    (pause,) = pauses(made)
    roles = [o for o in made.machine.enclosing(pause) if isinstance(o, Role)]  # type: ignore[union-attr]
    assert [r.name for r in roles] == ["epilogue loads"]
    assert pause.parent is not None
    assert isinstance(pause.parent.parent, If)
    each = made.plan.epilogue_pause
    assert each > 0
    text = made.module.source
    assert f"const int pause_1 = trips_1 * {each};" in text
    before, _, after = text.partition("pause_thread(pause_1);")
    assert before.rstrip().endswith("if (column_1 < 128) {")
    assert after.index("mbarrier_wait(old_empty") < after.index("tma_load(old_")


def test_slots_for_all_chunks_need_no_condition() -> None:
    made = made_for(4096, 4096, 4096, BM=128, BN=128, cluster=1, ping_pong=True)
    (pause,) = pauses(made)
    assert pause.parent is not None
    assert not isinstance(pause.parent.parent, If)


@pytest.mark.parametrize(("stages", "slots"), [(2, 5), (3, 5), (4, 4), (5, 5)])
def test_slots_of_several_programs_make_room_for_the_role(stages: int, slots: int) -> None:
    """Six fit without it, and five beside it, which are what a ring has by itself."""
    options = {"BM": 128, "BN": 128, "BK": 64, "cluster": 1, "ping_pong": True, "num_warps": 4}
    plan = made_for(4096, 4096, 4096, **options, num_stages=stages).plan
    assert isinstance(plan, Plan)
    assert (plan.num_stages, plan.epilogue_slots) == (slots, 2)


def test_a_cta_with_one_tile_does_not_stand_still() -> None:
    options = {"BM": 128, "BN": 128, "num_consumers": 2, "persistent": False, "cluster": 1}
    made = made_for(512, 512, 1024, **options)
    assert isinstance(made.plan, Plan)
    assert made.plan.epilogue_slots
    assert not pauses(made)


def test_it_orders_nothing() -> None:
    """The proof holds with and without, and what is missing is seen all the same."""
    made = made_for(1024, 1024, 512)
    assert made.machine is not None
    assert check(made.machine).proved
    for pause in pauses(made):
        made.machine.erase(pause)
    assert check(made.machine).proved
