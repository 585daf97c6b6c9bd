"""Debug builds: a wait that would last for ever is given up and told of; delays change no result."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from dataclasses import replace

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.emulation.matmuls import Problem
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import is_right
from tests.emulation.matmuls import matmul_kernel
from tests.emulation.matmuls import run_matmul
from tests.unit.ws.machine_kernels import attention
from tests.unit.ws.machine_kernels import case
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.errors import PipelineStall
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.runtime.interop import from_numpy

PROBLEM = Problem(264, 72, 264)
LINE = r"(?m)^ *"
slow = pytest.mark.slow
STRUCTURES = {
    "ping-pong cluster": {"BM": 128, "BN": 64, "ping_pong": True, "cluster": 2, "num_stages": 2},
    "cooperative": {"BM": 128, "BN": 64, "num_consumers": 2, "ping_pong": False, "cluster": 1,
                    "num_stages": 3},
    "split-K": {"BM": 128, "BN": 64, "split_k": 2, "num_stages": 2},
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A replacement in the text, and who waits for what because of it: (role, kind, channel)."""

    old: str
    new: str
    waits: tuple[str, str, str]


FAULTS = {
    "no release": Fault(
        LINE + r"if \(lane .*mbarrier_arrive.*a_b_empty_1.*\n", "", ("producer", "empty", "a_b")
    ),
    "other parity of a full slot": Fault(
        r"(?m)(a_b_full_1 .*)a_b_at_2\.parity,",
        r"\g<1>a_b_at_2.parity ^ 1,",
        ("producer", "empty", "a_b"),
    ),
    "other parity of an empty slot": Fault(
        "a_b_at_1.parity ^ 1,", "a_b_at_1.parity,", ("producer", "empty", "a_b")
    ),
    "too many bytes": Fault(
        r"(?m)mbarrier_expect_tx\((a_b.*), (\d+)\);",
        r"mbarrier_expect_tx(\g<1>, \g<2> + 16);",
        ("consumer", "full", "a_b"),
    ),
    "one arrival more is counted": Fault(
        r"(?m)mbarrier_init\(a_b_full_1 (.*), 1\)",
        r"mbarrier_init(a_b_full_1 \g<1>, 2)",
        ("consumer", "full", "a_b"),
    ),
}


def all_waits(stall: PipelineStall) -> set[tuple[str, str, str]]:
    """Who waited when it came to a stop: the one of the error and those of its notes."""
    found = {(stall.role, stall.kind, stall.channel)}
    for note in stall.notes:
        made = re.match(
            r"at that time (\w+) .*waited for an? (\w+) slot of channel (\w+)", note.message
        )
        found |= {(made[1], made[2], made[3])} if made else set()
    return found


BUILDS = ({}, {"debug": True, "delay": 8}, {"debug": True}, {"delay": 7})
EVERY = [
    "ping-pong cluster",
    pytest.param("cooperative", marks=slow),
    pytest.param("split-K", marks=slow),
]


@pytest.mark.parametrize("structure", EVERY)
@pytest.mark.parametrize("builds", [BUILDS[:2], pytest.param(BUILDS[::3], marks=slow)], ids=len)
def test_a_debug_build_and_delays_compute_the_same(
    structure: str, builds: tuple[dict[str, object], ...]
) -> None:
    results: list[np.ndarray] = []
    for build in builds:
        kernel = matmul_kernel(PROBLEM, **STRUCTURES[structure], **build)
        seeds = (0, 5) if build else (0,)
        results += [run_matmul(PROBLEM, kernel, seed=s).view(np.uint16) for s in seeds]
    assert all((r == results[0]).all() for r in results)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize(
    "structure",
    [
        "cooperative",
        pytest.param("ping-pong cluster", marks=slow),
        pytest.param("split-K", marks=slow),
    ],
)
def test_a_stall_says_who_waits_for_what(structure: str, name: str) -> None:
    kernel = matmul_kernel(PROBLEM, debug=True, **STRUCTURES[structure])
    fault = FAULTS[name]
    module = replaced(kernel.module, fault.old, fault.new)
    with pytest.raises((PipelineStall, emulate.EmulationFault)) as caught:
        run_matmul(PROBLEM, kernel, module=module)
    if isinstance(caught.value, emulate.EmulationFault):
        # A parity that lets a wait through is a race, which the emulation reports first.
        assert "parity of a full" in name
        return
    stall = caught.value
    assert fault.waits in all_waits(stall)
    assert stall.slot < STRUCTURES[structure]["num_stages"]
    assert "matmul_kernels.py:32" in str(stall)
    assert "output of this launch is undefined" in str(stall)
    assert is_right(PROBLEM, run_matmul(PROBLEM, kernel)), "the next launch starts afresh"


def test_the_first_stall_is_told_exactly() -> None:
    """Without any release, the producer fills the ring once and waits for its first slot."""
    kernel = matmul_kernel(PROBLEM, debug=True, **STRUCTURES["cooperative"])
    text = re.sub(LINE + r"if \(lane .*mbarrier_arrive.*a_b_empty_1.*\n", "", kernel.module.source)
    with pytest.raises(PipelineStall) as caught:
        run_matmul(PROBLEM, kernel, module=replace(kernel.module, source=text))
    producer = caught.value
    assert (producer.role, producer.channel, producer.kind) == ("producer", "a_b", "empty")
    assert (producer.slot, producer.parity, producer.count) == (0, 0, 3)
    assert producer.block == (0, 0, 0)
    assert "PipelineStall" in repr(pickle.loads(pickle.dumps(producer)))
    assert pickle.loads(pickle.dumps(producer)).channel == "a_b"


def test_a_named_barrier_is_given_up() -> None:
    options = {**STRUCTURES["ping-pong cluster"], "cluster": 1}
    kernel = matmul_kernel(PROBLEM, debug=True, **options)
    module = replaced(kernel.module, LINE + r"named_barriers\.arrive\(.*\n", "", count=0)
    with pytest.raises(PipelineStall) as caught:
        run_matmul(PROBLEM, kernel, module=module)
    text = str(caught.value)
    assert "consumer (warp 4) waited for named barrier 3" in text


def attention_kernel(**options: object) -> KernelModule:
    made = case("attention")
    arguments = [from_numpy(made.inputs[n]) for n in "qkv"]
    out = from_numpy(made.arguments()["o"])
    kernel = compiled(
        attention, (*arguments, out, 64**-0.5, False, 64), made.grid, fast_math=True, **options
    )
    return kernel.module


@pytest.mark.parametrize(
    ("old", "waits"),
    [
        (r"if \(lane .*mbarrier_arrive.*y_empty_1.*\n", ("producer", "empty", "y")),
        pytest.param(
            r"if \(lane .*mbarrier_arrive.*tiles_empty_1.*\n",
            ("producer", "empty", "tiles"),
            marks=slow,
        ),
        (r"mbarrier_arrive\(tiles_full_1.*\n", ("consumer", "full", "tiles")),
    ],
    ids=["no release of K", "no release of a tile", "no tile is told"],
)
def test_attention_stalls_are_told(old: str, waits: tuple[str, str, str]) -> None:
    """A consumer that never learns its tile leaves its loop, all warps together."""
    made = case("attention")
    module = attention_kernel(debug=True)
    broken = replaced(module, LINE + old, "", count=0)
    with pytest.raises(PipelineStall) as caught:
        emulate.run(broken, made.arguments(), made.grid, num_sms=2)
    assert waits in all_waits(caught.value)
    assert "machine_kernels.py" in str(caught.value) or waits[2] == "tiles"
    arguments = made.arguments()
    emulate.run(module, arguments, made.grid, num_sms=2)
    assert made.is_right(arguments["o"])


def test_attention_with_delays() -> None:
    made = case("attention")
    module = attention_kernel(debug=True, delay=11)
    for seed in (0, 3):
        arguments = made.arguments()
        emulate.run(module, arguments, made.grid, seed=seed, num_sms=2)
        assert made.is_right(arguments["o"])


@tiledsl.jit
def doubled(x, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    inside = i < n
    value = tl.load(x + i, mask=inside)
    tl.device_assert(value > 0, "x is positive", mask=inside)
    tl.device_assert(n < 1000)
    tl.store(o + i, value * 2, mask=inside)


def test_an_assertion_names_program_and_line() -> None:
    x, o = np.ones(300, np.float32), np.zeros(300, np.float32)
    arguments = (from_numpy(x), from_numpy(o), 300, 96)
    module = compiled(doubled, arguments, (4,), debug=True).module
    emulate.run(module, {"x": x, "o": o, "n": 300}, (4,))
    assert (o == 2).all()
    x[250] = -1
    with pytest.raises(TileError) as caught:
        emulate.run(module, {"x": x, "o": o, "n": 300}, (4,))
    text = str(caught.value)
    assert "device_assert failed in program (2, 0, 0): x is positive" in text
    assert 'tl.device_assert(value > 0, "x is positive", mask=inside)\n' in text
    with pytest.raises(TileError, match=r"device_assert failed in program \(0, 0, 0\)"):
        emulate.run(module, {"x": np.ones(3000, np.float32), "o": o, "n": 3000}, (1,))
    plain = compiled(doubled, arguments, (4,)).module
    assert "all_hold" not in plain.source


def test_assertions_are_checked_in_a_single_role() -> None:
    @tiledsl.jit
    def checked(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BK: tl.constexpr = 64):
        acc = tl.zeros((128, 64), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((0, k), (128, BK)), b.load((k, 0), (BK, 64)), acc)
        tl.device_assert(acc < 1e30)
        c.store((0, 0), acc)

    shapes = ((128, 256), (256, 64), (128, 64))
    tensors = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in shapes]
    assert checked.compile(*tensors, grid=(1,)).certificate is not None
    report = checked.report(*tensors, grid=(1,), debug=True)
    assert "a debug build checks assertions in a single role (test_emulated_debug.py" in report
    with pytest.raises(ScheduleError, match="checks assertions in a single role"):
        checked.compile(*tensors, grid=(1,), debug=True, num_consumers=1)


def test_a_plain_build_has_nothing_of_it() -> None:
    plain = matmul_kernel(PROBLEM, **STRUCTURES["cooperative"]).module
    assert not plain.is_debug
    assert plain.sites == ()
    for word in ("stalled", "watched", "jitter", "settle"):
        assert word not in plain.source
    assert "TDSL_DEBUG 1" not in dict(plain.headers)["tiledsl/build.cuh"]


def test_warps_agree_to_leave_before_they_look_at_the_tile() -> None:
    """After a stall, a tile id read before its wait ended may differ from warp to warp."""
    lines = [line.strip() for line in attention_kernel(debug=True).source.splitlines()]
    votes = [i for i, line in enumerate(lines) if line.startswith("if (leave_together(")]
    assert len(votes) == 1
    assert re.fullmatch(r"if \(!t_\d+\) break;", lines[votes[0] + 1])
