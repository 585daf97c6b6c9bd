"""Role graphs and machine graphs of the README matmul, as goldens under tests/golden/ws/."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import matmul_request
from tiledsl.ir.op import Level
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import mma
from tiledsl.ir.parser import parse_graph
from tiledsl.ir.printer import print_graph
from tiledsl.ir.verifier import verify

CASES = {
    "ping_pong": {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 2, "num_stages": 4},
    "deferred": {"BM": 128, "BN": 256, "ping_pong": False, "num_consumers": 2, "cluster": 1},
    "split_k": {"BM": 128, "BN": 64, "split_k": 2, "num_stages": 4},
}


def dumped(name: str, folder: Path) -> dict[str, str]:
    request = replace(matmul_request(4096, 4096, 4096, **CASES[name]), dump=folder)
    assert first(request).plan.describe()
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.tir")}


@pytest.mark.parametrize("name", CASES)
def test_role_graph(name: str, tmp_path: Path, golden: Golden) -> None:
    text = dumped(name, tmp_path)["20_partition"]
    graph = parse_graph(text)
    verify(graph)
    assert print_graph(graph) == text
    golden(text, f"ws/{name}.tir")


@pytest.mark.parametrize("name", CASES)
def test_machine_graph(name: str, tmp_path: Path, golden: Golden) -> None:
    text = dumped(name, tmp_path)["22_machine"]
    graph = parse_graph(text)
    verify(graph)
    assert graph.level is Level.MACHINE
    assert not any(isinstance(op, aref.Get | aref.Put | aref.Consumed) for op in graph.walk())
    if name == "split_k":
        golden(text, f"ws/{name}_machine.tir")


@pytest.mark.parametrize("depth", [1, 2])
def test_chunks_of_a_deferred_store_share_an_iteration(depth: int) -> None:
    """A product more for each chunk would double what ptxas takes."""
    for tile in (128, 256):
        options = {**CASES["deferred"], "BN": tile, "mma_depth": depth}
        kernel = first(matmul_request(4096, 4096, 4096, **options))
        assert kernel.plan.deferred
        assert kernel.machine is not None
        assert len(kernel.machine.find(mma.Issue)) == 2
        assert kernel.certificate is not None
        assert kernel.certificate.proved
